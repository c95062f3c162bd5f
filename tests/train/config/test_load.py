"""YAML and settings of the command line become a configuration, strictly, and a configuration becomes YAML again."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoint import ExitCode, Failure
from train.config import load, schema
from train.config.load import apply_overrides, keep_last_overrides, parse_override, parse_overrides
from train.config.schema import KEYS, RunConfig


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e5", 1e5),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("0x1F", 31),
        ("0o17", 15),
        ("+7", 7),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("0777", "0777"),
        ("12:30:00", "12:30:00"),
        ("1_000", "1_000"),
        ("2001-01-01", "2001-01-01"),
        ("=", "="),
        ("<<", "<<"),
        ("True", True),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        ("!!str 5", "5"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("9" * 19, float("9" * 19)),
        ("9" * 6000, math.inf),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    read = load.parse_yaml(text, "t").value
    assert (read, type(read)) == (value, type(value))


def test_nan_is_a_number() -> None:
    assert math.isnan(load.parse_yaml(".nan", "t").value)


def test_every_key_has_its_line() -> None:
    lines = load.parse_yaml("a:\n  b: 1\n\n  c: [2, 3]\nd: 4\n", "t").lines
    assert lines == {(): 1, ("a",): 1, ("a", "b"): 2, ("a", "c"): 4, ("a", "c", "0"): 4, ("a", "c", "1"): 4, ("d",): 5}


def test_an_alias_is_a_copy() -> None:
    assert load.parse_yaml("a: &x {e: 1}\nb: *x", "t").value == {"a": {"e": 1}, "b": {"e": 1}}


def test_a_byte_order_mark_is_not_part_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load.read_yaml_file(tmp_path / "c.yaml").value == {"a": 1}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        pytest.param("!!python/object/apply:os.system [ls]", ExitCode.SECURITY, "nothing was run", id="python-object"),
        pytest.param("a: !!python/name:os.system x", ExitCode.SECURITY, "!!python/name", id="python-name"),
        pytest.param("!!python/tuple [1]: 2", ExitCode.SECURITY, "python/tuple", id="python-key"),
        pytest.param("a: !!int foo", ExitCode.USAGE, "!!int", id="tag"),
        pytest.param("a: !mine 3", ExitCode.USAGE, "!mine", id="own-tag"),
        pytest.param("a: !!set {b}", ExitCode.USAGE, "!!set", id="set-tag"),
        pytest.param(
            "a: 1\nb: 2\na: 3", ExitCode.USAGE, "line 3, column 1: a is written twice, first on line 1", id="twice"
        ),
        pytest.param("a: {b: 1, b: 2}", ExitCode.USAGE, "a.b is written twice", id="twice-nested"),
        pytest.param(BOMB, ExitCode.USAGE, "more values", id="anchor-bomb"),
        pytest.param("a: &a [*a]", ExitCode.USAGE, "more values", id="endless-alias"),
        pytest.param("[" * 3000, ExitCode.USAGE, "levels", id="deep"),
        pytest.param(f"[{'*a,' * 101}]", ExitCode.USAGE, "alias", id="undefined-aliases"),
        pytest.param("#" * 1_100_000, ExitCode.USAGE, "larger than 1024 KiB", id="huge"),
        pytest.param("? [a]\n: b", ExitCode.USAGE, "a key must be text", id="list-key"),
        pytest.param("1.5: b", ExitCode.USAGE, "a key must be text", id="number-key"),
        pytest.param("a: b: c", ExitCode.USAGE, "line 1, column 5", id="two-colons"),
        pytest.param("a:\n\t- b", ExitCode.USAGE, "line 2, column 1", id="tab"),
        pytest.param("a: 1\nb: {c: 1", ExitCode.USAGE, "line 2, column 9", id="open-brace"),
        pytest.param("a: 'b", ExitCode.USAGE, "line 1, column 6", id="open-quote"),
        pytest.param("a: @x", ExitCode.USAGE, "'@'", id="at"),
        pytest.param("a: *nope", ExitCode.USAGE, "nope", id="undefined-alias"),
        pytest.param("--- 1\n--- 2", ExitCode.USAGE, "another document", id="two-documents"),
        pytest.param("%YAML 3.0\n---\na: 1", ExitCode.USAGE, "version 1", id="yaml-3"),
        pytest.param("a: 1\nb: \x01", ExitCode.USAGE, "line 2", id="control-character"),
        pytest.param("a: \udcff", ExitCode.USAGE, "\\udcff", id="surrogate"),
    ],
)
def test_bad_text_is_refused_with_place_and_fix(text: str, code: ExitCode, problem: str) -> None:
    with pytest.raises(Failure) as caught:
        load.parse_yaml(text, "my.yaml")
    failure = caught.value
    assert (failure.code, bool(failure.fix)) == (code, True)
    assert problem in failure.what
    assert failure.what.startswith("my.yaml")


def test_a_weight_for_each_of_imagenets_21841_classes_is_no_bomb(tmp_path: Path) -> None:
    names = [f"n{number:08d}" for number in range(21_841)]
    file = tmp_path / "cfg.yaml"
    file.write_text("optim:\n  class_weights:\n" + "".join(f"    {name}: 1.5\n" for name in names))
    assert load.load_config(str(file)).optim.class_weights == dict.fromkeys(names, 1.5)


def test_whole_numbers_are_names_of_classes() -> None:
    config = load.load_config(None, ["optim.class_weights={1: 1, 10: 2.5, 02: 3}"])
    assert config.optim.class_weights == {"1": 1, "10": 2.5, "02": 3}
    assert (
        load.build_config(load.parse_yaml(load.dump_config(config), "x"), "x").optim.class_weights
        == config.optim.class_weights
    )


def test_more_values_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_VALUES", 100)
    with pytest.raises(Failure, match="more values"):
        load.parse_yaml("[" + "1," * 101 + "]", "my.yaml")


def test_what_is_left_open_is_looked_for_on_the_line_before_too() -> None:
    with pytest.raises(Failure, match="not valid YAML") as caught:
        load.parse_yaml("run: {name: a}\ndata: {name: folder\ntrain: {epochs: 1}\n", "my.yaml")
    assert "mend line 3, or the one before it (a bracket, brace or quote that is not closed)" in caught.value.fix
    with pytest.raises(Failure) as caught:
        load.parse_yaml("a: @x", "my.yaml")
    assert caught.value.fix.startswith("mend line 1: ")


def test_a_missing_file_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"no\.yaml does not exist") as caught:
        load.read_yaml_file(tmp_path / "no.yaml")
    assert caught.value.code == ExitCode.NO_INPUT


@pytest.mark.parametrize("path", ["/dev/null", "."], ids=["device", "folder"])
def test_only_regular_files_are_read(path: str) -> None:
    with pytest.raises(Failure, match="not a regular file") as caught:
        load.read_yaml_file(Path(path))
    assert caught.value.code == ExitCode.USAGE


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes("a: ü".encode("latin-1"))
    with pytest.raises(Failure, match="UTF-8"):
        load.read_yaml_file(tmp_path / "c.yaml")


def test_a_name_that_the_system_refuses_is_a_usage_error() -> None:
    with pytest.raises(Failure, match="cannot be read"):
        load.read_yaml_file(Path("x" * 300))


@pytest.mark.parametrize("text", ["3e-4", "no", "0777", "12:30:00", "0o7", "null", "", "1_0", "true", "a: b", "- x"])
def test_text_that_looks_like_something_else_is_quoted(text: str) -> None:
    dumped = yaml.dump([text], Dumper=load.Yaml12Dumper)
    assert load.parse_yaml(dumped, "t").value == [text]
    assert yaml.safe_load(dumped) == [text]


@pytest.mark.parametrize(("asked", "existing"), [("cfg.yml", "cfg.yaml"), ("cfg.yaml", "cfg.yml")])
def test_a_file_of_the_other_ending_is_offered(asked: str, existing: str, tmp_path: Path) -> None:
    (tmp_path / existing).touch()
    with pytest.raises(Failure, match="does not exist") as caught:
        load.read_yaml_file(tmp_path / asked)
    assert caught.value.fix.startswith(f"write {tmp_path / existing}; or ")


@pytest.mark.parametrize("text", ["abc", "=3", "a.=3", ".a=3", "a..b=3"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(Failure, match=r"is not section\.key=value") as caught:
        parse_override(text)
    assert (caught.value.code, caught.value.fix) == (ExitCode.USAGE, "write e.g. optim.lr=0.1")


@pytest.mark.parametrize("name", ["cfg.yaml", "runs/a b.yml", "notes"])
def test_a_file_without_its_option_is_told_with_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes").touch()
    with pytest.raises(Failure, match="is not section") as caught:
        parse_override(name)
    assert caught.value.fix == f"write --config {shlex.quote(name)}"


@pytest.mark.parametrize("text", ["a.b=[1", "a.b=@x", "a.b={c: 1, c: 2}"])
def test_a_value_that_is_no_yaml_names_the_argument(text: str) -> None:
    with pytest.raises(Failure) as caught:
        parse_override(text)
    assert f"`{text}`" in caught.value.what


def test_python_tags_are_refused_here_too() -> None:
    with pytest.raises(Failure) as caught:
        parse_override("a.b=!!python/object/apply:os.system [id]")
    assert caught.value.code == ExitCode.SECURITY


def test_only_the_first_equals_sign_counts() -> None:
    override = parse_override("a.b=c=d")
    assert (override.keys, override.value) == (("a", "b"), "c=d")


def test_merging_leaves_the_original_alone() -> None:
    original = {"a": {"b": 1}}
    assert (apply_overrides(original, [parse_override("a.b=2")]), original) == ({"a": {"b": 2}}, {"a": {"b": 1}})


def test_merging_makes_the_sections_that_are_missing() -> None:
    assert apply_overrides(None, [parse_override("a.b.c=1"), parse_override("d.e=2")]) == {
        "a": {"b": {"c": 1}},
        "d": {"e": 2},
    }


@pytest.mark.parametrize("value", [{"a": 3}, {"a": [1]}, [1], "x"])
def test_a_setting_inside_what_is_no_mapping_is_refused(value: object) -> None:
    with pytest.raises(Failure, match=r"`a.b=1` sets a key inside (a|the file), which is not a mapping") as caught:
        apply_overrides(value, [parse_override("a.b=1")])
    assert caught.value.code == ExitCode.USAGE


def test_one_key_twice_is_refused_and_both_are_named() -> None:
    with pytest.raises(Failure, match=r"optim\.lr is written twice on the command line") as caught:
        parse_overrides(["optim.lr=1", "run.seed=1", "optim.lr=2"])
    assert (caught.value.code, caught.value.fix) == (ExitCode.USAGE, "remove `optim.lr=1` or `optim.lr=2`")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("optim.lr=1", "optim={lr: 2}"), "optim"),
        (("optim={lr: 2}", "optim.lr=1"), "optim"),
        (("model.args.width=8", "model.args={depth: 2}"), "model.args"),  # the width would be lost
        (("model={args: {depth: 2}}", "model.args.depth=3"), "model"),
        (("optim={lr: 2}", "optim={momentum: 0}"), "optim"),
    ],
)
def test_a_key_that_is_set_again_with_its_section_is_refused_and_both_are_named(
    words: tuple[str, str], key: str
) -> None:
    with pytest.raises(Failure) as caught:
        parse_overrides(words)
    assert caught.value.what == f"{key} is written twice on the command line"
    assert (caught.value.code, caught.value.found) == (ExitCode.USAGE, f"`{words[0]}` and `{words[1]}`")


def test_another_key_may_be_added_to_a_section_that_is_set() -> None:
    words = ["model.args={width: 4}", "model.args.depth=2"]
    assert apply_overrides(None, parse_overrides(words)) == {"model": {"args": {"width": 4, "depth": 2}}}


def test_a_section_keeps_the_keys_of_the_file_that_it_is_not_given() -> None:
    file = {"optim": {"name": "adamw", "lr": 0.1}, "model": {"name": "small_cnn", "args": {"width": 4}}}
    words = ["optim={lr: 2}", "model.args={depth: 2}"]
    assert apply_overrides(file, parse_overrides(words)) == {
        "optim": {"name": "adamw", "lr": 2},
        "model": {"name": "small_cnn", "args": {"depth": 2}},
    }


def test_of_a_program_s_words_and_its_user_s_the_last_for_a_key_is_kept() -> None:
    assert keep_last_overrides(["a.b=1", "a.c=1", "a.b=2", "a.d=x=y"]) == ["a.c=1", "a.b=2", "a.d=x=y"]


def test_of_a_user_s_section_all_that_a_program_does_not_set_is_kept() -> None:
    kept = keep_last_overrides(["run={name: '7', output_dir: runs}", "run.output_dir=/tmp"])
    assert kept == ["run={name: '7'}", "run.output_dir=/tmp"]
    assert apply_overrides(None, parse_overrides(kept)) == {"run": {"name": "7", "output_dir": "/tmp"}}
    assert keep_last_overrides(["a.b.c=1", "a.b={d: 2}"]) == ["a.b={d: 2}"]


Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a configuration file; returns its path."""

    def write_text(text: str) -> str:
        (tmp_path / "my.yaml").write_text(text)
        return str(tmp_path / "my.yaml")

    return write_text


def refusal(path: str | None, *overrides: str) -> Failure:
    with pytest.raises(Failure) as caught:
        load.load_config(path, overrides)
    return caught.value


WRONG_TYPES = {
    "text-for-float": ("optim:\n  lr: fast", "optim.lr: fast", "a number"),
    "quoted-float": ("optim:\n  lr: '3e-4'", "optim.lr: '3e-4'", "without quotes: 3e-4"),
    "leading-zeros": ("train:\n  epochs: 0777", "train.epochs: '0777'", "0777, 1_000 and 12:30:00 are text"),
    "clock-time": ("checkpoint:\n  every_minutes: 12:30:00", "checkpoint.every_minutes: '12:30:00'", "plain number"),
    "no-for-false": ("log:\n  tensorboard: no", "log.tensorboard: 'no'", "write false: YAML 1.2 reads no as text"),
    "float-for-int": ("train:\n  micro_batch_size: 2.0", "train.micro_batch_size: 2.0", "a whole number or auto"),
    "bool-for-int": ("train:\n  epochs: true", "train.epochs: true", "a whole number"),
    "number-for-text": ("run:\n  name: 42", "run.name: 42", "put it in quotes to make it text: '42'"),
    "unknown-choice": ("train:\n  precision: bf-16", "train.precision: bf-16", "write bf16"),
    "list-for-mapping": ("model:\n  args: [1]", "model.args: [1]", "a mapping"),
}

OUT_OF_RANGE = {
    "restarts": ("launch:\n  max_restarts: -1", "launch.max_restarts: -1", "from 0 to 1000"),
    "tracker": ("log:\n  trackers: [visdom]", "log.trackers: [visdom]", "a list of mlflow"),
    "tracker-twice": ("log:\n  trackers: [mlflow, mlflow]", "log.trackers: [mlflow, mlflow]", "each once"),
    "zero-epochs": ("train:\n  epochs: 0", "train.epochs: 0", "from 1"),
    "negative-lr": ("optim:\n  lr: -0.1", "optim.lr: -0.1", "more than 0"),
    "infinite-lr": ("optim:\n  lr: .inf", "optim.lr: .inf", "finite"),
    "nan-inside-args": ("model:\n  args: {a: [.nan]}", "model.args: {a: [.nan]}", "finite"),
    "whole-fraction": ("data:\n  val_fraction: 1", "data.val_fraction: 1", "less than 1"),
    "slash-in-name": ("run:\n  name: a/b", "run.name: a/b", "a plain folder name"),
    "home-in-path": ("data:\n  root: ~/images", "data.root: ~/images", "without ~"),
    "model": ("model:\n  name: resnet-18", "model.name: resnet-18", "write model.name: resnet18"),
    "compile": ("train:\n  compile: true", "train.compile: true", "false, default or reduce-overhead"),
    "steps-as-text": ("profile:\n  steps: '10:20'", "profile.steps: '10:20'", "a list of whole numbers"),
    "schedule": ("optim:\n  schedule: cosin", "optim.schedule: cosin", "write optim.schedule: cosine"),
}

UNKNOWN = {
    "section": ("networks:\n  depth: 1", "networks: {depth: 1}", "remove networks"),
    "near-section": ("optm:\n  lr: 1", "optm: {lr: 1}", "write optim instead of optm"),
    "near-key": ("optim:\n  learning_rat: 1\n", "optim.learning_rat: 1", "optim"),
    "typo": ("train:\n  epoch: 1", "train.epoch: 1", "write train.epochs instead of train.epoch"),
    "no-section": ("epochs: 1", "epochs: 1", "write `train: {epochs: 1}` instead of epochs"),
    "other-section": ("optim:\n  epochs: 1", "optim.epochs: 1", "write `train: {epochs: 1}` instead of optim.epochs"),
    "nested": ("launch:\n  timeouts:\n    sav: 1", "launch.timeouts.sav: 1", "write launch.timeouts.save"),
    "merge-key": ("x: &x {lr: 1}\noptim:\n  <<: *x", "x: {lr: 1}", "remove x"),
    "case": ("optim:\n  LR: 1", "optim.LR: 1", "write optim.lr instead of optim.LR"),
}

NOT_A_MAPPING = {
    "list": ("- a", "the configuration: [a]", "a mapping"),
    "text": ("hello", "the configuration: hello", "a mapping"),
    "number-for-section": ("optim: 3", "optim: 3", "below `optim:`"),
    "number-for-nested-section": ("launch:\n  timeouts: 3", "launch.timeouts: 3", "below `launch.timeouts:`"),
}

BAD_FILES = WRONG_TYPES | OUT_OF_RANGE | UNKNOWN | NOT_A_MAPPING


@pytest.mark.parametrize(("text", "setting", "advice"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_refused_with_key_value_line_and_advice(
    write: Write, text: str, setting: str, advice: str
) -> None:
    failure = refusal(write(text))
    assert failure.code == ExitCode.USAGE
    assert failure.found is not None
    assert failure.found.startswith(setting)
    assert "my.yaml, line " in failure.found
    assert advice in f"{failure.expected} {failure.fix}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("optim:\n\n  lr: x", 3),
        ("optim: {momentum: 0.9,\n  lr: x}", 2),
        ("# c\noptim:\n  args:\n    a: 1\n  lrr: 2", 5),
    ],
)
def test_the_line_is_that_of_the_key(write: Write, text: str, line: int) -> None:
    assert f"line {line})" in str(refusal(write(text)))


BAD_OVERRIDES = {
    "type": ("optim.lr=fast", "optim.lr: fast"),
    "empty": ("optim.lr=", "optim.lr: null"),
    "null-name": ("run.name=null", "run.name: null"),
    "below-a-leaf": ("optim.lr.x=1", "optim.lr: {x: 1}"),
    "section": ("optim=3", "optim: 3"),
}


@pytest.mark.parametrize(("override", "setting"), BAD_OVERRIDES.values(), ids=BAD_OVERRIDES.keys())
def test_a_bad_override_is_named(override: str, setting: str) -> None:
    failure = refusal(None, override)
    assert failure.code == ExitCode.USAGE
    assert failure.found == f"{setting} (`{override}` on the command line)"
    assert failure.fix


WRONG_SHAPES = {
    "a-name-for-a-section": ("model: resnet18", "write model: {name: resnet18}"),
    "a-name-like-one": ("model: resnet_18", "write model: {name: resnet18}"),
    "a-run": ("run: mine", "write run: {name: mine}"),
    "a-factory": ("model: mine:make", "write model: {name: 'mine:make'}"),
    "a-list-with-a-name": ("optim: [adamw]", "write optim: {name: adamw}"),
    "no-name-at-all": ("data: photos", "write `key: value` lines below `data:`"),
    "no-section-with-a-name": ("eval: accuracy", "write `key: value` lines below `eval:`"),
    "a-mapping-for-a-name": ("model: {name: {name: resnet18}}", "write model.name: resnet18"),
    "a-mapping-of-arguments": ("model: {name: {resnet18: {}}}", "write model.name: resnet18"),
    "a-list-for-a-name": ("model: {name: [resnet18]}", "write model.name: resnet18"),
    "a-mapping-for-a-number": ("train: {epochs: {n: 3}}", "write train.epochs: 3"),
    "two-values": ("model: {name: {a: b, c: d}}", "correct it, or leave it out"),
    "a-mapping-of-no-name": ("model: {name: {name: unheard}}", "correct it, or leave it out"),
    "a-name-for-a-key": ("model: {resnet18}", "write model.name: resnet18"),
    "a-name-below-another-key": ("model: {arch: resnet18}", "write model.name: resnet18"),
}


@pytest.mark.parametrize(("text", "fix"), WRONG_SHAPES.values(), ids=WRONG_SHAPES.keys())
def test_a_value_of_the_wrong_shape_is_answered_with_the_spelling(write: Write, text: str, fix: str) -> None:
    assert refusal(write(text)).fix.startswith(fix)


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("model=resnet18", "write model.name=resnet18"),
        ("model={arch: resnet18}", "write model.name=resnet18"),
        ("model.name.name=resnet18", "write model.name=resnet18"),
        ("eval=accuracy", "write eval.KEY=VALUE"),
    ],
)
def test_on_the_command_line_the_spelling_is_that_of_the_command_line(override: str, fix: str) -> None:
    assert refusal(None, override).fix == fix


def test_three_typos_are_told_at_once(write: Write) -> None:
    failure = refusal(write("run: {nmae: x}\ntrain:\n  epoch: 3\n  micro_batch_size: two\n"))
    assert failure.what == "unknown key run.nmae"
    epoch, batch = failure.also
    assert epoch.startswith("train.epoch: 3 (")
    assert epoch.endswith("line 3), fix: write train.epochs instead of train.epoch")
    assert batch.startswith("train.micro_batch_size: two (")


def test_a_file_of_another_program_is_not_searched_to_its_end(write: Write) -> None:
    failure = refusal(write("".join(f"other{number}: 1\n" for number in range(1000))))
    assert 5 < len(failure.also) < 100


@pytest.mark.parametrize(
    ("file", "text", "overrides", "name"),
    [
        ("photos.yaml", "optim: {lr: 0.1}\n", (), "photos"),
        ("photos.v2.yml", "", (), "photos.v2"),
        ("photos.yaml", "run: {seed: 3}\n", ("run.seed=4",), "photos"),
        ("photos.yaml", "run: {name: mine}\n", (), "mine"),
        ("photos.yaml", "run: {name: mine}\n", ("run.name=typed",), "typed"),
        ("photos.yaml", "", ("run.name=typed",), "typed"),
        ("photos.yaml", "", ("run={seed: 3}",), "photos"),
        (f"{'long' * 60}.yaml", "", (), "quickstart"),
        (" .yaml", "", (), "quickstart"),
    ],
)
def test_a_run_without_a_name_is_called_as_its_file(
    file: str, text: str, overrides: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(text)
    assert load.load_config(str(tmp_path / file), overrides).run.name == name


def test_no_file_is_the_quickstart() -> None:
    assert load.load_config(None) == RunConfig()


@pytest.mark.parametrize(
    "text", ["", "\n# only a comment\n", "optim:\n", "optim: {}\nlaunch: {timeouts: }", "---\n..."]
)
def test_what_is_left_out_is_the_default(write: Write, text: str) -> None:
    defaults = RunConfig()
    expected = dataclasses.replace(defaults, run=dataclasses.replace(defaults.run, name="my"))  # as the file
    assert load.load_config(write(text)) == expected


def test_a_whole_number_is_also_a_float(write: Write) -> None:
    config = load.load_config(write("optim: {lr: 1, warmup_epochs: 2}"))
    assert (config.optim.lr, type(config.optim.lr)) == (1.0, float)


def test_a_learning_rate_in_scientific_notation_is_a_number(write: Write) -> None:
    assert load.load_config(write("optim: {lr: 3e-4}")).optim.lr == 3e-4


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("optim.lr=1e-3", "optim", "lr", 1e-3),
        ("model.args.width=32", "model", "args", {"width": 32}),
        ("model.args={width: 32, norm: group}", "model", "args", {"width": 32, "norm": "group"}),
        ("run.name=42", "run", "name", "42"),
        ("run.name='42'", "run", "name", "42"),
        ("run.name=no", "run", "name", "no"),
        ("data.root=/a b #c", "data", "root", "/a b #c"),
        ("data.root=/ü", "data", "root", "/ü"),
        ("train.max_steps=null", "train", "max_steps", None),
        ("train.micro_batch_size=auto", "train", "micro_batch_size", "auto"),
        ("log.tensorboard=false", "log", "tensorboard", False),
        ("data={samples: 100}", "data", "samples", 100),
    ],
)
def test_an_override_sets_a_value(override: str, section: str, key: str, value: Any) -> None:
    assert getattr(getattr(load.load_config(None, [override]), section), key) == value


def test_nested_sections_are_overridden_one_key_at_a_time(write: Write) -> None:
    timeouts = load.load_config(write("launch: {timeouts: {start: 7}}"), ["launch.timeouts.save=5"]).launch.timeouts
    assert (timeouts.start, timeouts.step, timeouts.save) == (7.0, "auto", 5.0)


def test_overrides_win_over_the_file(write: Write) -> None:
    assert load.load_config(write("train: {epochs: 1}"), ["train.epochs=2"]).train.epochs == 2


def test_an_override_replaces_a_bad_value_of_the_file(write: Write) -> None:
    assert load.load_config(write("optim: {lr: x}"), ["optim.lr=1"]).optim.lr == 1.0


def test_the_file_is_named_when_its_value_is_the_bad_one(write: Write) -> None:
    assert "my.yaml, line 1" in str(refusal(write("optim: {lr: x}"), "optim.momentum=0.5"))


WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
LEAVES = (
    WORDS
    | st.integers(-(10**17), 10**17)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False, allow_infinity=False)
)
ARGS = st.dictionaries(WORDS, LEAVES | st.lists(LEAVES, max_size=3), max_size=3)


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    """Valid configurations, with text that looks like everything else."""
    start, rate = RunConfig(), st.floats(1e-300, 1e6)
    odd = st.sampled_from(["no", "0777", "3e-4", "12:30:00", "null", "true", "x: y", "#", "'", "ü", "- a", "!b", "&c"])
    name = draw(odd | WORDS.filter(schema.FOLDER_NAME.holds))
    return dataclasses.replace(
        start,
        run=dataclasses.replace(start.run, name=name, seed=draw(st.integers(0, 2**32 - 1))),
        model=dataclasses.replace(start.model, args=draw(ARGS)),
        optim=dataclasses.replace(start.optim, lr=draw(rate), args=draw(ARGS)),
        train=dataclasses.replace(start.train, max_steps=draw(st.none() | st.integers(1, 10**9))),
    )


@settings(max_examples=60, deadline=None)
@given(configs())
def test_a_dumped_configuration_loads_back_to_itself(
    tmp_path_factory: pytest.TempPathFactory, config: RunConfig
) -> None:
    path = tmp_path_factory.getbasetemp() / "dumped.yaml"
    path.write_text(load.dump_config(config), encoding="utf-8")
    assert load.load_config(str(path)) == config


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.binary(max_size=60))
def test_no_file_whatever_ends_in_anything_but_a_failure(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(Failure):
        load.load_config(str(path))


CONFIGS = Path(__file__).parents[3] / "configs"


def given_keys(path: Path) -> set[str]:
    """The section.key paths that a file writes out."""
    text = yaml.safe_load(path.read_text())
    nested = {"launch.timeouts"}
    keys = {f"{section}.{key}" for section, values in text.items() for key in values} - nested
    return keys | {f"launch.timeouts.{key}" for key in text.get("launch", {}).get("timeouts", {})}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_configuration_loads(path: Path) -> None:
    assert isinstance(load.load_config(str(path)), RunConfig)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_configuration_means_what_it_says(path: Path) -> None:
    """The loaded values are the file's, and nothing else differs from the quickstart."""
    loaded, defaults = dataclasses.asdict(load.load_config(str(path))), dataclasses.asdict(RunConfig())
    for section, values in defaults.items():
        written = yaml.safe_load(path.read_text()).get(section, {})
        assert loaded[section] == values | written | {
            key: values[key] | written.get(key, {}) for key in values if isinstance(values[key], dict)
        }


def test_the_quickstart_file_is_the_default() -> None:
    assert load.load_config(str(CONFIGS / "quickstart.yaml")) == RunConfig()


def test_the_quickstart_file_writes_out_every_key() -> None:
    assert given_keys(CONFIGS / "quickstart.yaml") == set(KEYS)


def test_the_quickstart_file_explains_itself() -> None:
    lines = (CONFIGS / "quickstart.yaml").read_text().splitlines()
    assert sum("#" in line for line in lines) > 60


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().run.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "words",
    [
        ["model={args: {api_key: hunter2}, nam: x}"],
        ["log.api_key=hunter2"],
        ["model.args.api_key=hunter2", "model.args.api_key=hunter2"],
        ["model.args={width: 3, api_key: hunter2}", "model.args.width=4"],
        ["optim.args=[{api_key: hunter2}]"],
    ],
    ids=" ".join,
)
def test_an_error_about_a_setting_does_not_show_a_secret_in_it(words: list[str]) -> None:
    with pytest.raises(Failure) as caught:
        load.load_config(None, words)
    assert "(not shown)" in str(caught.value) or "api_key" not in str(caught.value)
    assert "hunter2" not in f"{caught.value}{caught.value.as_json()}"
