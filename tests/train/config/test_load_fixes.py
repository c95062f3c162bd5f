"""The fix of a refused setting is what the user meant, and never made of a wrong reading of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure
from train import __main__ as front
from train.config import load


def refusal(*overrides: str) -> Failure:
    with pytest.raises(Failure) as refused:
        load.load_config(None, overrides)
    assert refused.value.code == ExitCode.USAGE
    return refused.value


def file_refusal(text: str, tmp_path: Path) -> Failure:
    (tmp_path / "my.yaml").write_text(text)
    with pytest.raises(Failure) as refused:
        load.load_config(str(tmp_path / "my.yaml"))
    return refused.value


TEXTS = {
    "data.group": ("(?P<p>[a-z]+): x", r"[a-z]+_\d", "x{3}", "[a-z]", "a #b", "- x", "^(?!x)"),
    "data.root": ("a: b", "@home", "%x", "[1]", "{a}", "*x", "&x", "x:", "!x", "`x`", "|", "> a", "'tis"),
    "run.name": ("3e-4", "0777", "yes", "1.0", "a: b", "@x"),
}


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in TEXTS.items() for text in texts])
def test_text_on_the_command_line_is_taken_as_it_is(key: str, text: str) -> None:
    section, name = key.split(".")
    assert getattr(getattr(load.load_config(None, [f"{key}={text}"]), section), name) == text


def test_text_in_quotes_is_what_is_in_them() -> None:
    assert load.load_config(None, ["data.root='a: b'"]).data.root == "a: b"
    assert load.load_config(None, ['data.root="null"']).data.root == "null"


@pytest.mark.parametrize("null", ["null", "~", ""])
def test_null_is_still_null(null: str) -> None:
    assert load.load_config(None, [f"data.cache={null}"]).data.cache is None


@pytest.mark.parametrize(
    "line",
    [r"group: [a-z]+_\d", "group: [a-z", "root: @home", "root: a: b", r'root: "C:\data"', "root: 'it's'"],
)
def test_text_that_needs_quotes_in_a_file_is_told_so(line: str, tmp_path: Path) -> None:
    fix = file_refusal(f"data:\n  name: folder\n  {line}\n", tmp_path).fix
    assert fix.startswith("mend line ")
    assert "text with : # @ { [ in quotes" in fix


def test_a_pattern_that_is_a_list_to_yaml_is_shown_in_quotes(tmp_path: Path) -> None:
    assert file_refusal("data:\n  name: folder\n  group: [a-z]\n", tmp_path).fix == "write data.group: '[a-z]'"


@pytest.mark.parametrize("text", ["data: {root: [a}\n", "data:\n\tname: folder\n", "train: [1\n"])
def test_a_line_that_is_no_yaml_is_named(text: str, tmp_path: Path) -> None:
    assert file_refusal(text, tmp_path).fix.startswith("mend line")


IN_FILES = {
    "merge-key": (
        "optim: &base {lr: 0.1}\ntrain:\n  <<: *base\n",
        "write lr: 0.1 below `train:` instead: YAML 1.2 has no `<<`",
    ),
    "points": ("optim.lr: 0.1\n", "write `lr: 0.1` below `optim:`; a key in a file has no points"),
    "points-of-another-tool": ("train.max_epochs: 5\n", "write `epochs: 5` below `train:`;"),
    "points-below": ("launch:\n  timeouts.step: 9\n", "write `step: 9` below `launch: timeouts:`;"),
    "percent": ("data: {val_fraction: 20}\n", "write data.val_fraction: 0.2"),
    "percent-sign": ("data: {val_fraction: 20%}\n", "write data.val_fraction: 0.2"),
    "percent-of-no-share": ("optim: {warmup_epochs: 5%}\n", "write a plain number"),
    "percent-of-a-threshold": ("eval: {threshold: 50}\n", "write eval.threshold: 0.5"),
    "slash": ("run: {name: a/b}\n", "write run.name: a-b"),
    "space": ("run: {name: ' a b '}\n", "write run.name: a-b"),
    "f1": ("eval: {metric: f1}\n", "write eval.metric: macro_f1"),
    "acc": ("eval: {metric: Acc}\n", "write eval.metric: accuracy"),
    "cosine": ("optim: {schedule: CosineAnnealingLR}\n", "write optim.schedule: cosine"),
    "list": ("log: {trackers: wandb}\n", "write log.trackers: [wandb]"),
    "weights": ("model: {weights: true}\n", "set model.weights to the file of pretrained weights, or"),
    "plateau": ("optim: {schedule: ReduceLROnPlateau}\n", "write optim.schedule: cosine, which needs no validation"),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_FILES)
def test_the_fix_in_a_file_is_what_was_meant(name: str, tmp_path: Path) -> None:
    text, fix = IN_FILES[name]
    assert file_refusal(text, tmp_path).fix.startswith(fix)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["log.trackers=wandb"], "write 'log.trackers=[wandb]'"),
        (["log.trackers=wandb,mlflow"], "write 'log.trackers=[wandb, mlflow]'"),
        (["profile.steps=3,5"], "write 'profile.steps=[3, 5]'"),
        (["+optim.lr=0.1"], "write optim.lr=0.1"),
        (["++optim.lr=0.1"], "write optim.lr=0.1"),
        (["~optim.lr"], "leave it out: optim.lr has its default without it"),
        (["train.epochs", "5"], "write train.epochs=5"),
        (["train.epochs=", "5"], "write train.epochs=5"),
        (["train.epochs", "=", "5"], "write train.epochs=5"),
        (["train.epochs:", "5"], "write train.epochs=5"),
        (["train.epochs:5"], "write train.epochs=5"),
        (["train.epochs", "optim.lr=1"], "write train.epochs=VALUE"),
        (["run.name", "my run"], "write 'run.name=my run'"),
        (["batch_size", "8"], "write train.global_batch_size=8"),
        (["model.args.mode=@x"], """close brackets and quotes; or for text write 'model.args.mode='"'"'@x'"'"''"""),
    ],
)
def test_the_fix_on_the_command_line_is_what_was_meant(words: list[str], fix: str) -> None:
    assert refusal(*words).fix == fix


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("--epochs 3", "write train.epochs=3"),
        ("--epochs=3", "write train.epochs=3"),
        ("--lr 0.1 check", "write optim.lr=0.1"),
        ("check --batch-size 64", "write train.global_batch_size=64"),
        ("--train.epochs 3", "write train.epochs=3"),
        ("--confg my.yaml", "write --config"),
        ("--amp", "write train.precision: bf16"),
        ("train.epochs 5", "write train.epochs=5"),
        ("epochs 5", "write train.epochs=5"),
        ("doctor --full", "write `entrypoint doctor`"),
        ("validate runs/x", "write `train eval RUN`"),
        ("lr-find", "write `train find-lr --config FILE`"),
        ("chek", "write `train check`"),
        ("data pck photos --output shards", "use one of: train data check"),
        ("check data.task=regresion", "write data.task=regression"),
        ("check --config https://example.org/a.yaml", "write it into a file first"),
        ("check --config -", "write it into a file first"),
    ],
)
def test_the_fix_of_a_command_is_what_was_meant(words: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(words.split(), {}) == ExitCode.USAGE
    assert f"\n  fix: {fix}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_a_file_without_a_setting_does_not_train_the_quickstart(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.yaml").write_text(text)
    assert front.run_command(["check", "--config", str(tmp_path / "my.yaml")], {}) == ExitCode.USAGE
    assert "holds no setting" in capsys.readouterr().err


PATHS = {
    "config": ("check --config my.yml.bak", "my.yaml.bak"),
    "weights": ("check model.weights=wieghts/net.pth", "weights/net.pth"),
    "run": ("eval runs/phto", "runs/photo"),
    "folder": ("check data.name=folder data.root=phtos", "photos"),
    "table": ("check data.name=table data.root=lables.csv", "labels.csv"),
    "array": ("check data.name=npz data.root=clpis.npz", "clips.npz"),
    "tensor": ("check data.name=tensor data.root=clpis.pt", "clips.pt"),
    "image": ("predict runs/photo Photos/a.jpg", "photos/a.jpg"),
}


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_is_nearly_right_is_written_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, near = PATHS[name]
    (tmp_path / near).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / near).touch()
    if name == "image":
        from train.cli import predict

        with pytest.raises(Failure) as refused:
            predict.find_images([words.split()[2]])
        assert refused.value.fix.startswith(f"write {near}; or ")
        return
    assert front.run_command(words.split(), {}) == ExitCode.NO_INPUT
    assert f"fix: write {near}; or " in capsys.readouterr().err


def test_a_run_without_checkpoints_is_not_proposed_in_its_own_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photo").mkdir()
    assert front.run_command(["eval", str(tmp_path / "photo")], {}) == ExitCode.NO_INPUT
    assert "write " not in capsys.readouterr().err


@pytest.mark.parametrize("value", ["DEFAULT", "imagenet", "IMAGENET1K_V2", "ResNet18_Weights.DEFAULT", "pretrained"])
def test_the_published_weights_of_the_model_are_named(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "model.name=resnet18", f"model.weights={value}", "data.image_size=64"]
    assert front.run_command(words, {}) == ExitCode.NO_INPUT
    assert "fix: run `train weights fetch resnet18` where there is a network" in capsys.readouterr().err
