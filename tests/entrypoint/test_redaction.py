"""What is a secret in a variable, an address and a command line, and what is none."""

from __future__ import annotations

import pytest

from entrypoint import ExitCode, Failure, redaction

SECRET = ("HF_PAT", "GITHUB_PAT", "PAT", "PAT_OF_MINE", "CUDA_PASSPHRASE", "NCCL_PASSWORD", "HF_TOKEN", "WANDB_API_KEY")
SECRET += ("TORCH_SECRET", "AWS_CREDENTIALS", "PROXY_AUTH", "hf_token", "MY_CREDS", "MYSQL_PWD", "PWD_OF_MINE", "DB_PW")
SECRET += ("COOKIE", "HTTP_COOKIE", "session_id", "AWS_SESSION", "BEARER", "HF_BEARER")
SECRET += (
    "JWT",
    "SIGNATURE",
    "SAS_SIG",
    "API_PIN",
    "PRIVATE",
    "PRIVATE_KEY",
    "CERT",
    "CERT_KEY",
    "PGPASSWORD",
    "apiKey",
)
SECRET += ("SSHPASS", "APIKEY", "KEY_2", "TOKEN2", "OAUTH", "PROXY_AUTHORIZATION", "CUDA-KEY", "cuda.key", "JSESSIONID")
OPEN = ("PWD", "OLDPWD", "SESSION_MANAGER", "XDG_SESSION_ID", "DESKTOP_SESSION", "DBUS_SESSION_BUS_ADDRESS", "PWM_HZ")
OPEN += ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_PATH", "COMPAT", "NCCL_PATTERN", "HOME", "OMP_NUM_THREADS")
OPEN += (
    "KEYBOARD",
    "COMPASS",
    "AUTHOR",
    "MONKEY",
    "KEYFRAMES",
    "TOKENIZERS_PARALLELISM",
    "BYPASS",
    "HOCKEY",
    "SECRETARY",
)
OPEN += ("PIN_MEMORY", "SSL_CERT_FILE", "SPIN", "DESIGNATURES", "PRIVATE_REPO", "INCREDIBLE", "PASSTHROUGH")


@pytest.mark.parametrize("name", SECRET)
def test_a_variable_that_is_called_as_secrets_are_is_not_shown(name: str) -> None:
    assert redaction.redact_value(name, "abc") == "(not shown)"


@pytest.mark.parametrize(
    "value", ["user=me pw=hunter2", "Pwd=hunter2;Uid=me", "Cookie: a=hunter2; b=hunter2", "x\nsession: hunter2"]
)
def test_what_a_value_calls_a_secret_is_not_shown(value: str) -> None:
    assert "hunter2" not in redaction.redact_value("NCCL_OPTIONS", value)


@pytest.mark.parametrize("name", OPEN)
def test_other_variables_are_shown(name: str) -> None:
    assert redaction.redact_value(name, "/a:/b@c") == "/a:/b@c"


ADDRESSES = {
    "https://me:hunter2@host/x": "https://(not shown)@host/x",
    "https://hunter2@host/x": "https://(not shown)@host/x",
    "https://me:a/hunter2@host/x": "https://(not shown)@host/x",
    "https://me:a?hunter2@host/x": "https://(not shown)",
    "https://host/x?token=hunter2&to=me@home": "https://(not shown)",
    "me:hunter2@proxy:3128": "(not shown)@proxy:3128",
    "//me:hunter2@host": "//(not shown)@host",
    "https://host/x?token=hunter2": "https://host/x?(not shown)",
    "https://host/x#hunter2": "https://host/x#(not shown)",
    "https://host/x;jsessionid=hunter2?a=hunter2": "https://host/x;(not shown)",
    "`model.args.api_key=hunter2`": "`model.args.api_key=(not shown)`",
    "DSN=host=h pw='hunter2 too' port=1": "DSN=host=h pw=(not shown) port=1",
    "{'width': 3, 'hub_token': 'hunter2'}": "{'width': 3, 'hub_token': (not shown)}",
    "{width: 3, hub_token: hunter2}": "{width: 3, hub_token: (not shown)}",
    "tokens=[hunter2, hunter2]": "tokens=(not shown)",
    "401: Bearer hunter2": "401: Bearer (not shown)",
    "see https://me:hunter2@host/x?a=hunter2 there": "see https://(not shown)@host/x?(not shown) there",
    "`data.mirror='https://host?hunter2'`": "`data.mirror='https://host?(not shown)'`",
    "no `https://host/x?token=hunter2` there": "no `https://host/x?(not shown)` there",
    "Authorization: Basic dXNlcjpwYXNz": "Authorization: (not shown)",
    'curl -H "Proxy-Authorization: Basic dXNlcjpwYXNz" x': 'curl -H "Proxy-Authorization: (not shown)" x',
    'authorization: Digest username="me", response="ab"': "authorization: (not shown)",
    "Cookie: a=b; c=d\nHost: h": "Cookie: (not shown)\nHost: h",
    "Set-Cookie: a=b; Secure": "Set-Cookie: (not shown)",
    "HF_TOKEN = abc": "HF_TOKEN = (not shown)",
    "jwt: eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x-y": "jwt: (not shown)",
    "with ghp_16C7e42F292c6912E7710c838347Ae178B4a.": "with (not shown).",
    "with <hf_abcdefghijklmnopqrstuvwxyzabcdefgh>": "with <(not shown)>",
    "with glpat-x1y2z3x1y2z3x1y2z3x1": "with (not shown)",
    "with `sk-proj-x1y2z3x1y2z3x1y2z3x1`": "with `(not shown)`",
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "AWS_SECRET_ACCESS_KEY=(not shown)",
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_is_shown_without_user_password_and_query(text: str) -> None:
    assert redaction.redact(text) == ADDRESSES[text] == redaction.redact(ADDRESSES[text])


@pytest.mark.parametrize(
    "text",
    [
        *("https://host:8443/a/b", "http://host/a@b", "file:///srv/a", "git@github.com:me/it", "me@host", "a? b"),
        *("docker.io/it/train:1.0@sha256:ab", "docker://host:5000/train@sha256:ab", "train data.root=/a/b", "run//x?y"),
        *("write section.key=value", "`key: value` with a space", "model.args.key_dim=64", "https://host/x; then"),
        *(
            "kf/keyframes=hd/bad.jpg",
            "/tmp/x/session=day1/x",
            "session=day1/x",
            "key=a/bad.jpg",
            "https://h/session=a/b",
        ),
        *(
            "monkey=a",
            "author=me",
            "compass=north",
            "tokenizer=bert",
            "loss: 0.1",
            "data.root=/a/hf_images2/x",
            "key == a",
        ),
        *(
            "model.private=true",
            "data.pin_memory=on",
            "hf_hub_download",
            "hf_transfer",
            "sk-learn-contributors",
            "a/sk-1-b-2-c-3-d-4",
        ),
        *("the session: it ended", "Cookie: none was set", "/a/hf_x1y2z3x1y2z3x1y2z3/b.jpg"),
    ],
)
def test_what_holds_no_secret_stays_as_it_is(text: str) -> None:
    assert redaction.redact(text) == text


WORDS = {
    "model.args.api_key=hunter2": "model.args.api_key=(not shown)",
    "model.args={hub_token: hunter2, width: 3}": "model.args={hub_token: (not shown), width: 3}",
    "model.args={session: [hunter2, hunter2]}": "model.args={session: (not shown)}",
    "Authorization: Bearer hunter2": "Authorization: (not shown)",
    "data.root=https://me:hunter2@host/x": "data.root=https://(not shown)@host/x",
    "model.args.key_dim=64": "model.args.key_dim=64",
    "model.name=keypoints:make": "model.name=keypoints:make",
    "run.name=monkey": "run.name=monkey",
}


@pytest.mark.parametrize("word", WORDS)
def test_a_command_line_is_written_down_without_its_secrets(word: str) -> None:
    assert redaction.redact_words([word]) == [WORDS[word]]


def test_the_word_after_an_option_for_a_secret_is_not_written_down() -> None:
    line = ["run", "--password", "hunter2", "--api-key", "hunter2", "--token", "--num-keys", "3", "--author", "me"]
    assert redaction.redact_words(line) == ["(not shown)" if word == "hunter2" else word for word in line]


def test_no_part_of_an_error_tells_a_secret() -> None:
    text = "https://me:hunter2@host/x?hunter2"
    failure = Failure(text, fix=text, code=ExitCode.USAGE, found=text, expected=text, kept=text, also=[text])
    assert "hunter2" not in f"{failure}{failure.as_json()}{failure.what}{failure.arguments()}"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["a", "key", "a.b-", "x:", "=x", '"', "{a: "])
def test_a_long_text_of_strangers_holds_nobody_up(text: str) -> None:
    long = text * (200_000 // len(text))  # minutes for a pattern that starts again at each letter
    assert redaction.redact(long) == long
