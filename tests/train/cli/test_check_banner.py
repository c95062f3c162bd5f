"""What `train check` says of a run that is there, and what a start then does: the same."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import plant
from images import write_classes
from jobs import ALONE, TINY, forget_accelerate

from entrypoint import Failure, LaunchOptions, make_plan
from train import session
from train.cli import check
from train.config import environment, load
from train.config.load import keep_last_overrides
from train.rank_context import RankContext
from train.run import record

HERE = (*TINY, "data.name=folder", "data.root=pets", "run.output_dir=runs", "run.name=run", "checkpoint.every_steps=4")
IDLE = ("data.samples=80", "data.classes=2")  # of other data
SETTINGS = tuple(setting for setting in HERE if setting not in IDLE)
RUN = Path("runs/run")
LAST, FIRST = RUN / "checkpoints/step-00000008", RUN / "checkpoints/step-00000004"
Change = Callable[[], object]


def start(*settings: str) -> int:
    """One start, in this process."""
    environ: dict[str, str] = {}
    found = environment.remove_conflicting_variables(environ, download=False)
    forget_accelerate()
    try:
        config = load.load_config(None, keep_last_overrides([*SETTINGS, *settings]))
        context = RankContext(world=ALONE, folder=Path(config.run.output_dir, config.run.name))
        return session.train_on_rank(config, context, environ, variables=found, argv=["train"], started_at=0.0)
    finally:
        forget_accelerate()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set, and a run of eight steps on it."""
    folder = tmp_path_factory.mktemp("foretold")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_classes(Path("pets"), cat=40, dog=40)
        assert start() == 0
    return folder


@pytest.fixture
def again(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, as the working directory."""
    shutil.copytree(finished, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")


def described(*settings: str) -> str:
    """The line in which `train check` says what a start would do."""
    plan = make_plan({}, LaunchOptions(device="cpu"))
    text = check.describe_plan(load.load_config(None, keep_last_overrides([*SETTINGS, *settings])), None, plan, None)
    return next(line for line in text.splitlines() if line.startswith(("this run ", "WARNING: this run ")))


def foretold(*settings: str) -> str:
    """The verdict: what, and from which step or with which code."""
    said = described(*settings)
    found = re.search(r"is finished \(step \S+ of [^):]+|would go on from step .*|refused \(\d+\)|start over", said)
    assert found, said
    return found[0].replace("would go on from", "goes on,").replace("is finished (", "is finished, ")


def happened(*settings: str) -> str:
    """The same words for what a start does."""
    try:
        start(*settings)
    except Failure as failure:
        return f"refused ({int(failure.code)})"
    if list(RUN.glob("before-*")):
        return "start over"
    began = record.read_starts(RUN)[-1]["step"]
    if json.loads((RUN / "errors/exit.json").read_text())["step"] == began:
        return f"is finished, step {began}"
    facts = json.loads((RUN / "run.json").read_text())["training"]
    return f"goes on, step {began} of {facts['steps']}"


def done(verdict: str) -> str:
    """What a start leaves of it: one that finds the run finished does not record how many steps it asked for."""
    return verdict.partition(" of ")[0] if verdict.startswith("is finished") else verdict


def state(change: Callable[[dict[str, Any]], object]) -> Change:
    """Another state.json in the newest checkpoint, with the right hashes."""

    def apply() -> None:
        told = json.loads((LAST / "state.json").read_text())
        change(told)
        plant(LAST, "state.json", json.dumps(told).encode())

    return apply


def cut(name: str, *folders: Path) -> Change:
    return lambda: [(folder / name).write_bytes((folder / name).read_bytes()[:-9]) for folder in folders]


def linked() -> None:
    (LAST / "model.safetensors").rename("elsewhere")
    (LAST / "model.safetensors").symlink_to(Path("elsewhere").absolute())


def grown() -> None:
    shutil.copy("pets/cat/000.png", "pets/cat/one-more.png")


def nothing() -> None:
    """The settings alone change."""


def has_reached_its_target(told: dict[str, Any]) -> None:
    told["config"]["eval"]["target"] = TARGET
    told["state"]["held"] = 1


def was_to_do_more(told: dict[str, Any]) -> None:
    told["config"]["train"]["epochs"] = 4


def had_reached_its_target_early(told: dict[str, Any]) -> None:
    was_to_do_more(told)
    has_reached_its_target(told)


FINISHED, FALLS_BACK, REFUSED = "is finished, step 8 of 8", "goes on, step 4 of 8", "refused (65)"
TARGET = 0.001
MORE, AIM = "train.epochs=4", f"eval.target={TARGET}"
SETTINGS_CHANGED: dict[str, tuple[tuple[str, ...], str]] = {
    "none": ((), FINISHED),
    "more epochs": ((MORE,), "goes on, step 8 of 16"),
    "fewer epochs": (("train.epochs=1",), "is finished, step 8 of 4"),
    "fewer steps": (("train.max_steps=4",), "is finished, step 8 of 4"),
    "more steps": ((MORE, "train.max_steps=10"), "goes on, step 8 of 10"),
    "another micro batch": (("train.micro_batch_size=4", "train.epochs=3"), "goes on, step 8 of 12"),
    "a target that nobody has looked at yet": ((MORE, AIM), "goes on, step 8 of 16"),
    "another rate": (("optim.lr=0.02",), REFUSED),
    "another seed": (("run.seed=3",), REFUSED),
    "another global batch": (("train.global_batch_size=8",), REFUSED),
    "another model": (("model.args.width=8",), REFUSED),
    "another share for validation": (("data.val_fraction=0.4",), REFUSED),
    "another kind of data": (("data.name=synthetic",), REFUSED),
    "another precision": (("train.precision=bf16",), REFUSED),
    "another metric": (("eval.metric=loss",), REFUSED),
    "an average of the weights": (("train.ema_decay=0.9",), REFUSED),
    "the same bits everywhere": (("train.reproducible=bitwise",), REFUSED),
    "a number that nobody reads": (("data.samples=99",), REFUSED),
    "start over": (("checkpoint.resume=never", "optim.lr=0.02"), "start over"),
}
FILES_CHANGED: dict[str, tuple[Change, tuple[str, ...], str]] = {
    "the data was moved": (lambda: Path("pets").rename("moved"), ("data.root=moved",), FINISHED),
    "an image more": (grown, (), REFUSED),
    "an image less": (Path("pets/cat/001.png").unlink, (), REFUSED),
    "an image renamed": (lambda: Path("pets/cat/001.png").rename("pets/cat/zzz.png"), (), REFUSED),
    "a class more": (lambda: shutil.copytree("pets/cat", "pets/emu"), (), REFUSED),
    "a class renamed": (lambda: Path("pets/cat").rename("pets/animal"), (), REFUSED),
    "a file that is no image": (Path("pets/cat/notes.txt").touch, (), FINISHED),
    "the newest state is cut off": (cut("state.json", LAST), (), FALLS_BACK),
    "the newest weights are cut off": (cut("model.safetensors", LAST), (), FALLS_BACK),
    "the newest weights are gone": ((LAST / "model.safetensors").unlink, (), FALLS_BACK),
    "the newest list is gone": ((LAST / "manifest.json").unlink, (), FALLS_BACK),
    "all weights are cut off": (cut("model.safetensors", LAST, FIRST), (), REFUSED),
    "the weights are a link": (linked, (), "refused (77)"),
    "a save was about to replace it": (lambda: LAST.rename(LAST.with_name(f".old-{LAST.name}")), (), FINISHED),
    "best.json is nonsense": (lambda: (RUN / "best.json").write_text("[[[]]]"), (), FINISHED),
    "run.json is half-written": (lambda: (RUN / "run.json").write_text('{"starts": [{'), (), FINISHED),
    "an older version told nothing of the data": (state(lambda told: told.pop("data")), (), FINISHED),
    "an older version lacked a key": (state(lambda told: told["config"]["train"].pop("spike")), (), FINISHED),
    "another version had a key more": (state(lambda told: told["config"]["train"].update(zzz=1)), (), REFUSED),
    "its target was reached": (state(has_reached_its_target), (MORE, AIM), "is finished, step 8 of 16"),
    "its target was reached once": (
        state(has_reached_its_target),
        (MORE, AIM, "eval.patience=3"),
        "goes on, step 8 of 16",
    ),
    "it was stopped past the end": (state(was_to_do_more), ("train.epochs=1",), REFUSED),
    "it was stopped past the last step": (state(was_to_do_more), ("train.max_steps=7",), REFUSED),
    "it was stopped at the end": (state(was_to_do_more), (), FINISHED),
    "it was stopped before the end": (state(was_to_do_more), ("train.epochs=3",), "goes on, step 8 of 12"),
    "it had reached a target past the end": (
        state(had_reached_its_target_early),
        ("train.epochs=1",),
        "is finished, step 8 of 4",
    ),
    "no classes are told": (state(lambda told: told["data"].pop("classes")), (), REFUSED),
    "the data is a list": (state(lambda told: told.update(data=[1])), (), REFUSED),
    "the step is a word": (state(lambda told: told["state"].update(step="8")), (), REFUSED),
    "the step is below zero": (state(lambda told: told["state"].update(step=-5)), (), REFUSED),
    "the step is endless": (state(lambda told: told["state"].update(step=float("inf"))), (), REFUSED),
    "the step is huge": (state(lambda told: told["state"].update(step=10**30)), (), REFUSED),
    "the result is a list": (state(lambda told: told["state"].update(result=[1])), (), REFUSED),
    "the count is a word": (state(lambda told: told["state"].update(held="x")), (), REFUSED),
    "the configuration is a list": (state(lambda told: told.update(config=[[[]]])), (), REFUSED),
    "the state is gone": (state(lambda told: told.pop("state")), (), REFUSED),
}


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize(("settings", "expected"), SETTINGS_CHANGED.values(), ids=SETTINGS_CHANGED)
def test_after_a_change_of_settings_a_start_does_what_check_foretells(settings: tuple[str, ...], expected: str) -> None:
    said = foretold(*settings)
    assert (said, happened(*settings)) == (expected, done(expected))


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize(("change", "settings", "expected"), FILES_CHANGED.values(), ids=FILES_CHANGED)
def test_after_a_change_of_files_a_start_does_what_check_foretells(
    change: Change, settings: tuple[str, ...], expected: str
) -> None:
    change()
    said = foretold(*settings)
    assert (said, happened(*settings)) == (expected, done(expected))


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize(
    "settings",
    [(), ("train.epochs=1",), ("train.max_steps=4",), ("train.max_steps=8",), ("train.max_steps=4", MORE)],
)
def test_who_does_what_a_finished_run_says_goes_on(settings: tuple[str, ...]) -> None:
    shown = described(*settings)
    advice = re.search(r"; add (\S+=\S+(?: \S+=\S+)*) to go on", shown)
    assert advice, shown
    assert foretold(*settings, *advice[1].split()).startswith("goes on, step 8 of ")


@pytest.mark.usefixtures("again")
def test_the_end_of_a_run_gives_the_advice_that_check_gives(capsys: pytest.CaptureFixture[str]) -> None:
    shorter = ("train.max_steps=4",)
    start(*shorter)
    more = "train.max_steps=null train.epochs=4"
    assert f"\ncontinue:      train {more}\n" in capsys.readouterr().out
    assert f"; add {more} to go on" in described(*shorter)


@pytest.mark.parametrize(
    ("now", "expected"), [((32, 8), FINISHED), ((33, 8), REFUSED), ((32, 9), REFUSED), ((50, None), REFUSED)]
)
def test_of_arrays_both_sides_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: tuple[int, int | None], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = ("data.name=npz", "data.root=arrays.npz", "train.epochs=4")
    save(32, 8)
    start(*arrays)
    save(*now)
    assert (foretold(*arrays), happened(*arrays)) == (expected, done(expected))


def save(training: int, validation: int | None) -> None:
    sides = {"train": training} | ({"test": validation} if validation else {})
    images = {f"x_{side}": np.zeros((count, 8, 8, 3), np.uint8) for side, count in sides.items()}
    labels = {f"y_{side}": np.arange(count) % 2 for side, count in sides.items()}
    np.savez("arrays.npz", **images, **labels)


def test_of_a_table_the_weights_of_its_images_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_classes(Path("pets"), cat=20, dog=20)
    table = ("data.name=table", "data.root=pets.csv", "train.epochs=4")
    images = sorted(Path("pets").rglob("*.png"))

    def weigh(weight: int) -> None:
        rows = (f"{path},{path.parent.name},{weight if path == images[0] else 1}" for path in images)
        Path("pets.csv").write_text("path,label,weight\n" + "\n".join(rows))

    weigh(1)
    start(*table)
    weigh(3)
    assert (foretold(*table), happened(*table)) == (REFUSED, REFUSED)
