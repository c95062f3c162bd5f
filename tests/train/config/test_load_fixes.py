"""The fix of a refused setting is what the user meant, and never made of a wrong reading of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Literal

import pytest

from entrypoint import ExitCode, Failure, StrictArgumentParser
from train import __main__ as front
from train import names
from train.cli import export, predict, report, weights
from train.config import load, schema
from train.config.schema import KEYS


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
        ("help", "write `train --help`"),
        ("data chek", "write `train data check`"),
        ("check --device gpu", "set --device to cuda, or leave it out"),
        ("check --device GPU:0", "set --device to cuda, or leave it out"),
        ("check --device tpu", "set --device to auto, cpu or cuda, or leave it out"),
        ("data pck photos --output shards", "write `train data pack`; or use one of: train data check"),
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


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "a whole number"),
        (int | Literal["auto"], "a whole number or auto"),
        (float | None, "a number or null"),
        (Literal["a", "b"], "one of a, b"),
        (list[str], "a list of texts"),
        (list[int] | None, "a list of whole numbers or null"),
        (dict[str, Any], "a mapping"),
    ],
)
def test_a_type_has_words(kind: Any, words: str) -> None:
    assert load.describe_type(kind) == words


@pytest.mark.parametrize(
    ("key", "section", "siblings", "nearest"),
    [
        ("lrr", "optim", ("lr", "args"), "optim.lr"),
        ("epochs", "", ("run", "train"), "train.epochs"),
        ("epochs", "optim", ("lr",), "train.epochs"),
        ("batchsize", "train", ("global_batch_size",), "train.global_batch_size"),
        ("zzz", "optim", ("lr",), None),
        ("save", "launch", ("device",), "launch.timeouts.save"),
    ],
)
def test_the_nearest_key_is_found(key: str, section: str, siblings: tuple[str, ...], nearest: str | None) -> None:
    assert load.nearest_key(key, section, siblings) == nearest


def test_a_long_value_is_cut() -> None:
    assert len(load.format_value("x" * 500)) == 80


def test_a_long_address_is_cut_after_its_password_was_taken_out() -> None:
    assert load.format_value(f"ftp://me:{'hunter2' * 20}@host") == "ftp://(not shown)@host"


def test_text_of_several_lines_is_shown_on_one() -> None:
    assert load.format_value("a\nb") == repr("a\nb")


@pytest.mark.parametrize(
    ("kind", "value", "advised"),
    [
        (int, 1e3, "write 1000, a whole number without point or exponent"),
        (int, 2.5, "correct it, or leave it out: the default is 5"),
        (float | None, [], "correct it, or leave it out: the default is 5"),
    ],
)
def test_a_wrong_value_is_not_replaced_by_another_meaning(kind: Any, value: Any, advised: str) -> None:
    assert load.suggest_fix(kind, value, 5) == advised


def test_of_two_names_that_differ_in_case_the_first_is_the_nearest() -> None:
    assert names.nearest_name("agamw", ["adamw", "AdamW"]) == "adamw"


def test_case_does_not_hide_the_nearest_name() -> None:
    assert names.nearest_name("ResNet18", ["small_cnn", "resnet18"]) == "resnet18"


@pytest.mark.parametrize(("key", "own_key"), load.KEYS_OF_OTHER_TOOLS.items(), ids=load.KEYS_OF_OTHER_TOOLS)
def test_another_tools_name_leads_to_a_key_that_exists(key: str, own_key: str) -> None:
    assert own_key in KEYS
    assert load.nearest_key(key, "train", ("epochs",)) == own_key


@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ("data.path=/x", "write data.root instead of data.path"),
        ("optim.betas=[0.9, 0.95]", "write optim.args.betas=[0.9, 0.95]"),
        ("train.dropout=0.1", "write model.args.dropout=0.1"),
        ("train.amp=true", "write train.precision: bf16, fp16 or fp32"),
        ("model.pretrained=true", "set model.weights to the file of pretrained weights"),
        ("train.accumulation=4", "set train.global_batch_size and train.micro_batch_size"),
        ("train.early_stopping=4", "write eval.early_stop instead of train.early_stopping"),
        ("optim.lr=0,1", "write 0.1, with a point instead of the comma"),
        ("data.val_fraction=0,25", "write 0.25, with a point instead of the comma"),
        ("optim.lr=1,5e-4", "write 1.5e-4, with a point instead of the comma"),
        ("train.epochs=1,5", "write a plain number, such as 5"),
        ("data.root=~/photos", "write data.root=/"),
        ("data.root=~", "write text, or leave it out: the default is data; in YAML, ~ means null"),
        ("optim.beta1=0.95", "write optim.args: {betas: [0.9, 0.999]}"),
        ("train.gradient_accumulation=4", "set train.global_batch_size and train.micro_batch_size"),
        ("train.freeze=backbone", "write model.freeze instead of train.freeze"),
        ("model.freeze_backbone=true", "write model.freeze instead of model.freeze_backbone"),
        ("model.freeze=true", "write model.freeze=backbone"),
        ("train.precision=16", "write train.precision=fp16"),
        ("train.precision=bf16-mixed", "write train.precision=bf16"),
        ("model.drop_path=0.1", "write model.args.drop_path_rate for timm's models"),
        ("model.drop_path_rate=0.1", "write model.args.drop_path_rate=0.1"),
        ("model.in_chans=1", "leave it out: the network gets the channels of the data"),
        ("model.load_from=x.pth", "write model.weights instead of model.load_from"),
        ("data.mixup_alpha=0.2", "write it in data.augment"),
        ("data.mean=[0.5]", "write data.normalize"),
        ("data.val_dir=photos/val", "set data.root to the folder above them"),
        ("data.csv=labels.csv", "set data.name to table"),
        ("data.balanced=true", "write data.sampling instead of data.balanced"),
        ("train.steps=100", "write train.max_steps instead of train.steps"),
        ("train.patience=3", "write eval.early_stop instead of train.patience"),
        ("optim.milestones=[30]", "set optim.schedule to step"),
        ("optim.min_lr=1e-6", "write optim.schedule_args: {end: 0.01}"),
        ("checkpoint.path=x", "write run.output_dir instead of checkpoint.path"),
        ("checkpoint.save_top_k=2", "write checkpoint.keep instead of checkpoint.save_top_k"),
        ("train.find_lr=true", "leave it out, and run `train find-lr`"),
        ("wandb=true", "write log.trackers: [wandb]"),
        ("model.name=resnet9", "write model.name=resnet18"),
        ("model.name=timm/resnet", "write model.name=timm/resnet10t"),
    ],
)
def test_what_users_of_other_tools_write_leads_to_the_setting_that_does_it(setting: str, fix: str) -> None:
    assert refusal(setting).fix.startswith(fix)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("name: a", "write `run: {name: a}` instead of name"),
        ("run: {seed: 1}\nname: a", "write `name: a` below `run:` instead of name"),
        ("train: {epochs:20}", "write `epochs: 20`, with a space after the colon"),
        ("train:\n  epochs:20\n  max_steps:3", "write `epochs: 20`, with a space after the colon"),
    ],
)
def test_the_fix_of_a_file_is_as_a_file_has_it(text: str, fix: str, tmp_path: Path) -> None:
    assert file_refusal(text, tmp_path).fix == fix


def test_an_argument_written_as_a_key_of_a_file_is_shown_as_the_file_would_hold_it(tmp_path: Path) -> None:
    fix = file_refusal("optim:\n  betas: [0.9, 0.95]\n", tmp_path).fix
    assert fix == "write optim.args: {betas: [0.9, 0.95]}"


@pytest.mark.parametrize("key", ["data.root", "run.output_dir", "model.weights"])
def test_a_path_from_home_is_written_out(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert refusal(f"{key}=~/photos").fix == f"write {key}=/home/me/photos"


def test_the_home_of_nobody_is_not_guessed() -> None:
    assert refusal("data.root=~nobody-of-this-name/photos").fix.startswith("correct it")


@pytest.mark.parametrize("key", [*load.FIXES_FOR_OTHER_TOOLS, *load.ARGUMENTS_WRITTEN_AS_KEYS])
def test_what_has_a_fix_of_its_own_is_no_key_of_ours(key: str) -> None:
    assert key not in {path.rpartition(".")[2] for path in KEYS}


@pytest.mark.parametrize("key", sorted(set(load.ARGUMENTS_WRITTEN_AS_KEYS.values())))
def test_the_key_that_holds_arguments_exists(key: str) -> None:
    assert key in KEYS


@pytest.mark.parametrize(
    ("path", "value", "meant"),
    [
        ("model.name", "resnet18", "resnet18"),
        ("model.name", "resnet_18", "resnet18"),
        ("model.name", ["resnet18"], "resnet18"),
        ("model.name", "mine:make", "mine:make"),
        ("model.name", {"arch": "resnet18"}, "resnet18"),
        ("model.name", {"arch": "mine:make"}, "mine:make"),
        ("model.name", {"resnet18": None}, "resnet18"),
        ("model.name", {"resnet18": {}}, "resnet18"),
        ("model.name", {"resnet18": {"width": 3}}, None),
        ("model.name", {"arch": "unheard"}, None),
        ("model.name", 3, None),
        ("model.name", ["resnet18", "resnet50"], None),
        ("run.name", "photos", "photos"),
        ("run.name", "../photos", "photos"),
        ("data.name", "photos", None),
        ("eval.name", "accuracy", None),  # there is no such key
        ("train.epochs", {"n": 3}, 3),
        ("train.epochs", [3], 3),
        ("train.epochs", {3: None}, 3),
        ("train.epochs", {"n": 3, "m": 4}, None),
        ("train.epochs", {"n": "x"}, None),
        ("train.epochs", [], None),
        ("train.epochs", [0], None),
        ("data.image_size", "224x224", [224, 224]),
        ("data.image_size", "(224, 192)", [224, 192]),
        ("log.trackers", "mybox:Tracker", ["mybox:Tracker"]),
        ("data.val_fraction", "20%", 0.2),
        ("data.task", "5%", None),
        ("train.precision", 16, "fp16"),
    ],
)
def test_the_one_value_that_is_meant_is_found_where_it_fits(path: str, value: Any, meant: Any) -> None:
    assert load.find_meant_value(path, value) == meant


PATH_KEYS = ("run.output_dir", "run.name", "data.root", "data.images", "data.stage", "data.cache", "model.weights")


def path_refusal(key: str, path: str, tmp_path: Path) -> Failure:
    """Of a file that sets the key."""
    section, name = key.split(".")
    failure = file_refusal(f"{section}:\n  {name}: {path}\n", tmp_path)
    assert failure.code == ExitCode.USAGE
    assert key in str(failure)
    return failure


@pytest.mark.parametrize("key", PATH_KEYS)
@pytest.mark.parametrize("path", ["$SCRATCH/runs", "${SCRATCH}/runs"])
def test_a_variable_in_a_file_is_refused_with_the_path_to_write(
    key: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    name = "scratch-me-runs" if key == "run.name" else "/scratch/me/runs"  # a plain folder name
    assert path_refusal(key, path, tmp_path).fix == f"write {key}: {name}"


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_refused_by_its_name(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("SCRATCH", raising=False)
    else:
        monkeypatch.setenv("SCRATCH", value)  # "$SCRATCH/runs" would be /runs
    assert "SCRATCH is not set" in path_refusal("run.output_dir", "$SCRATCH/runs", tmp_path).fix


def test_what_only_a_shell_can_do_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    for path in ("${SCRATCH:-/tmp}/runs", "$(pwd)/runs", "~nobody-of-this-name/runs"):
        path_refusal("run.output_dir", path, tmp_path)


def test_the_home_folder_is_refused_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert path_refusal("data.root", "~/photos", tmp_path).fix == "write data.root: /home/me/photos"


def test_the_rule_is_that_of_the_command_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    assert refusal("run.output_dir=$SCRATCH/my runs").fix == "write 'run.output_dir=/scratch/me/my runs'"


def test_what_is_there_by_such_a_name_may_be_read_but_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "$old").mkdir()
    assert load.load_config(None, ["data.root=$old"]).data.root == "$old"
    with pytest.raises(Failure):
        load.load_config(None, ["run.output_dir=$old"])


def test_every_key_with_a_folder_or_file_has_the_rule() -> None:
    with_rule = {path for path, key in schema.KEYS.items() if key.rule.find_problem is schema.PATH.find_problem}
    assert with_rule == set(PATH_KEYS)


def test_the_address_of_a_mirror_has_no_variable() -> None:
    with pytest.raises(Failure, match=r"data\.mirror"):
        load.load_config(None, ["data.mirror=file:///$HOME/mirror"])


PATH_OPTIONS: dict[str, tuple[argparse.ArgumentParser, list[str]]] = {
    "export": (export.build_parser(), ["runs/x", "--output"]),
    "predict": (predict.build_parser(), ["runs/x", "a.jpg", "--csv"]),
    "heat-maps": (predict.build_parser(), ["runs/x", "a.jpg", "--explain"]),
    "report": (report.build_parser(), ["runs/x", "--output"]),
    "weights": (weights.build_parser(), ["fetch", "resnet18", "--to"]),
}


@pytest.mark.parametrize("name", PATH_OPTIONS)
@pytest.mark.parametrize("path", ["$SCRATCH/out.csv", "~/out.csv"])
def test_an_option_of_any_command_makes_no_such_folder(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("HOME", "/scratch/me")
    parser, words = PATH_OPTIONS[name]
    with pytest.raises(Failure, match="only a shell") as refused:
        parser.parse_args([*words, path])
    assert refused.value.fix.startswith("write /scratch/me/out.csv")


def test_an_option_that_is_no_path_keeps_its_dollar() -> None:
    parser = StrictArgumentParser()
    parser.add_argument("--text", metavar="TEXT")
    assert parser.parse_args(["--text", "$5"]).text == "$5"
