"""A mapping and overrides to a RunConfig, strictly, and back."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoint import ExitCode, Failure
from train.config import load, schema
from train.config.schema import RunConfig

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
    "no-section": ("epochs: 1", "epochs: 1", "write train.epochs instead of epochs"),
    "other-section": ("optim:\n  epochs: 1", "optim.epochs: 1", "write train.epochs instead of optim.epochs"),
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


@pytest.mark.parametrize(("text", "found", "advice"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_refused_with_key_value_line_and_advice(write: Write, text: str, found: str, advice: str) -> None:
    failure = refusal(write(text))
    assert failure.code == ExitCode.USAGE
    assert failure.found is not None
    assert failure.found.startswith(found)
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


@pytest.mark.parametrize(("override", "found"), BAD_OVERRIDES.values(), ids=BAD_OVERRIDES.keys())
def test_a_bad_override_is_named(override: str, found: str) -> None:
    failure = refusal(None, override)
    assert failure.code == ExitCode.USAGE
    assert failure.found == f"{found} (`{override}` on the command line)"
    assert failure.fix


SHAPES = {
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


@pytest.mark.parametrize(("text", "fix"), SHAPES.values(), ids=SHAPES.keys())
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


def test_only_the_keys_that_say_so_come_from_the_other_configuration() -> None:
    marker = {path: object() for path in schema.KEYS if path.count(".") == 1}
    other = RunConfig()
    for path, value in marker.items():
        section, name = path.split(".")
        other = dataclasses.replace(other, **{section: dataclasses.replace(getattr(other, section), **{name: value})})
    mixed = schema.with_keys_of(RunConfig(), other, "in_evaluation")
    taken = {path for path, value in marker.items() if attrgetter(path)(mixed) is value}
    assert taken == {path for path in marker if schema.KEYS[path].in_evaluation}


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
