"""The same training, whoever computes it and however often it is interrupted: real processes, real gradients."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from grid import train_table, train_ten_steps
from jobs import trained
from processes import python, start_python, unmeasured, wait_until
from runs import TEN_STEPS, Run
from safetensors.torch import load_file
from strange import ACTING, REMOVED

from train import compilation
from train.config.optimizers import OPTIMIZERS
from train.logging.metrics_logger import METRICS_FILE, read_events

Train = Callable[..., Run]
Grid = Callable[[str, int], Run]
# Two epochs of 16 steps: what is left off at step 10 stands in the middle of the first.
LONG = (
    "train.max_steps=20",
    "train.epochs=2",
    "model.args.dropout=0.3",
    "checkpoint.every_steps=10",
    "checkpoint.keep=9",
)
# What is trained once whole and once as two starts, and on how many ranks.
WHOLE = {name: [*LONG, f"optim.name={name}", "optim.lr=0.01"] for name in ("sgd", "adamw")}
WHOLE["batch"] = [*LONG, "model.args.norm=batch", "optim.lr=0.01"]
PAIRS = [("sgd", 1), ("sgd", 2), ("sgd", 4), ("adamw", 1), ("adamw", 2), ("batch", 2)]
# On one rank in this process: what keeps a state of its own, and what differs in the start that ends after step 3.
STATEFUL: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **{
        name: ((f"optim.name={name}", "optim.lr=0.003"), ())
        for name in OPTIMIZERS
        if name not in ("SGD", "Adam", "AdamW")
    },
    "a class of the user's": (("optim.name=lion:Lion", "optim.lr=0.001", "optim.args.betas=[0.8, 0.95]"), ()),
    "compiled from then on": (("train.compile=default",), ("train.compile=false",)),
}
STILL = ["optim.lr=1e-12", "optim.weight_decay=0", "train.max_steps=1", "eval.batch_size=50"]  # 50 + 50 + 50 + 42


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("equality")
    (folder / "ten.yaml").write_text(TEN_STEPS)
    return folder


@pytest.fixture(scope="module")
def train(shared_folder: Path) -> Train:
    """Train for ten steps on so many ranks; what was trained before in the same way is taken from there."""

    def run(ranks: int, *settings: str) -> Run:
        name = "-".join([str(ranks), *settings])
        if not (shared_folder / "runs" / name).exists():
            again(shared_folder, ranks, *settings, name=name)
        return Run(folder=shared_folder / "runs" / name)

    return run


def command(ranks: int, *settings: str, name: str) -> list[str]:
    world = ["--device", "cpu", "--procs-per-node", str(ranks)]
    return ["-m", "train", "--config", "ten.yaml", *world, f"run.name={name}", *settings]


def again(shared_folder: Path, ranks: int, *settings: str, name: str) -> Run:
    ended = python(*command(ranks, *settings, name=name), cwd=shared_folder, env=unmeasured())
    assert ended.returncode == 0, ended.stderr
    return Run(folder=shared_folder / "runs" / name)


def whole_and_halved(shared_folder: Path, ranks: int) -> None:
    """PLACE/still/RANKS, PLACE/whole-NAME/RANKS, and PLACE/halved-NAME/RANKS that new processes end from step 10 on."""
    names = [name for name, on in PAIRS if on == ranks]
    train_table(shared_folder, ranks, {"still": STILL} | {f"whole-{name}": WHOLE[name] for name in names})
    for name in names:
        halved = Run(folder=shared_folder / f"halved-{name}" / str(ranks))
        shutil.copytree(shared_folder / f"whole-{name}" / str(ranks), halved.folder)
        forget_after(halved, 10)
    if names:
        train_table(shared_folder, ranks, {f"halved-{name}": WHOLE[name] for name in names})


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """A run of `whole_and_halved` by its name and ranks; all of so many ranks are trained when the first is wanted."""
    shared_folder = tmp_path_factory.mktemp("grid")

    def run(name: str, ranks: int) -> Run:
        if not (shared_folder / "still" / str(ranks)).exists():
            whole_and_halved(shared_folder, ranks)
        return Run(folder=shared_folder / name / str(ranks))

    return run


def forget_after(run: Run, step: int) -> None:
    """Take away what a kill right after `step` would have left undone."""
    for path in (run.folder / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)


def assert_close(run: Run, other: Run) -> None:
    ours, others = run.weights(10), other.weights(10)
    for name, weight in ours.items():
        assert (abs(weight - others[name]) <= 1e-6 + 1e-5 * abs(others[name])).all(), name


def assert_same_bits(run: Run, other: Run) -> None:
    for group in ("model", "optimizer"):
        ours, others = (
            load_file(r.folder / "checkpoints" / "step-00000020" / f"{group}.safetensors") for r in (run, other)
        )
        assert ours.keys() == others.keys()
        assert not [name for name in ours if not torch.equal(ours[name], others[name])]


def assert_same_weights(run: Run, other: Run) -> None:
    ours, others = run.weights(10), other.weights(10)
    assert ours.keys() == others.keys()
    assert not [name for name in ours if not (ours[name] == others[name]).all()]


def events(run: Run, name: str) -> list[dict[str, float]]:
    return [event for event in read_events(run.folder / METRICS_FILE) if event["event"] == name]


def evaluation(run: Run) -> dict[str, float]:
    return {name: events(run, "eval")[0][name] for name in ("accuracy", "loss", "samples")}


@pytest.mark.slow
def test_four_ranks_learn_what_one_learns(train: Train) -> None:  # two: tests/test_launchers.py
    assert_close(train(4), train(1))


@pytest.fixture(scope="module")
def in_this_process(shared_folder: Path) -> Run:
    """Ten steps on one rank."""
    return train_ten_steps(shared_folder / "in-this-process")


def test_accumulated_micro_batches_are_the_big_batch(in_this_process: Run, tmp_path: Path) -> None:
    assert_close(in_this_process, train_ten_steps(tmp_path / "big", ["train.micro_batch_size=48"]))


@pytest.mark.slow
def test_images_read_by_workers_teach_the_same(train: Train) -> None:
    assert_close(train(2, "data.loader=workers", "data.workers=2"), train(1))


@pytest.mark.slow
def test_fifty_variables_at_once_change_no_bit_and_each_is_shown(
    train: Train, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**REMOVED, **ACTING}.items():
        monkeypatch.setenv(name, value)
    strange = again(shared_folder, 2, name="strange")
    assert_same_weights(strange, train(2))
    assert strange.record["variables"]["removed"].keys() == REMOVED.keys()
    assert strange.record["variables"]["acting"].keys() >= ACTING.keys()
    assert len({**REMOVED, **ACTING}) >= 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ACCELERATE_TORCH_DEVICE", "TORCH_DISTRIBUTED_USE_TORCHCOMMS", "ONEDNN_DEFAULT_FPMATH_MODE"]
)
def test_a_dangerous_variable_alone_changes_no_bit(
    train: Train, shared_folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, REMOVED[name])
    assert_same_weights(again(shared_folder, 1, name=name), train(1))


@pytest.mark.slow
def test_a_variable_that_chooses_kernels_is_shown_and_changes_last_bits_only(
    train: Train, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    plain = again(shared_folder, 1, name="plain")
    assert_close(plain, train(1))
    assert plain.record["variables"]["acting"]["ATEN_CPU_CAPABILITY"] == "default"


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_variable_that_contradicts_the_config_is_refused_by_every_rank_before_anything_is_written(
    shared_folder: Path, rank: int
) -> None:
    contract = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environ = {**contract, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29777", "ACCELERATE_MIXED_PRECISION": "bf16"}
    line = ("-m", "train", "--config", "ten.yaml", "--device", "cpu", "run.name=refused")
    ended = python(*line, cwd=shared_folder, environ=environ)
    assert ended.returncode == 64
    assert "ERROR[64] ACCELERATE_MIXED_PRECISION and the config contradict each other" in ended.stderr
    assert not (shared_folder / "runs" / "refused").exists()


def test_ten_steps_change_the_weights(in_this_process: Run, tmp_path: Path) -> None:
    first = train_ten_steps(tmp_path / "still", ["optim.lr=1e-12"]).weights(10)
    assert all(abs(weight - first[name]).max() > 1e-3 for name, weight in in_this_process.weights(10).items())


@pytest.mark.slow
@pytest.mark.together("equality")
@pytest.mark.parametrize("ranks", [2, 3])
def test_evaluation_counts_every_image_once_on_any_number_of_ranks(grid: Grid, ranks: int) -> None:
    alone = evaluation(grid("still", 1))
    assert evaluation(grid("still", ranks)) == pytest.approx(alone, rel=1e-9)
    assert alone["samples"] == 192


@pytest.mark.parametrize(("settings", "before"), STATEFUL.values(), ids=STATEFUL)
def test_whatever_is_trained_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, settings: Sequence[str], before: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    settings = ("optim.schedule=constant", "optim.warmup_epochs=0", "train.ema_decay=0.9", *settings)
    trained(tmp_path / "halved", *settings, *before, "train.max_steps=3")
    halved, uninterrupted = (trained(tmp_path / name, *settings).checkpointer.newest for name in ("halved", "whole"))
    torch._dynamo.reset()
    assert halved is not None
    assert uninterrupted is not None
    for group in ("model", "optimizer", "ema"):
        assert (halved / f"{group}.safetensors").read_bytes() == (uninterrupted / f"{group}.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.together("equality")
@pytest.mark.parametrize(("name", "ranks"), PAIRS)
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(grid: Grid, name: str, ranks: int) -> None:
    halved, uninterrupted = (grid(f"{part}-{name}", ranks) for part in ("halved", "whole"))
    assert_same_bits(halved, uninterrupted)
    assert len(losses := [event["loss"] for event in events(uninterrupted, "eval")]) == 2
    assert [event["loss"] for event in events(halved, "eval")] == losses


@pytest.mark.slow
@pytest.mark.together("equality")
@pytest.mark.parametrize(("name", "ranks"), PAIRS)
def test_a_resumed_run_does_only_the_steps_after_its_checkpoint_again(grid: Grid, name: str, ranks: int) -> None:
    halved, uninterrupted = (
        {event["step"]: event["time"] for event in events(grid(f"{part}-{name}", ranks), "train")}
        for part in ("halved", "whole")
    )
    assert [step for step, time in uninterrupted.items() if halved[step] != time] == list(range(11, 21))


def test_two_ranks_stopped_by_a_signal_end_with_the_bits_of_one_that_was_not(shared_folder: Path) -> None:
    settings = (*LONG, "optim.lr=0.01", "train.reproducible=bitwise")
    settings += ("train.global_batch_size=64", "train.micro_batch_size=8")
    stopped = Run(folder=shared_folder / "runs" / "stopped")
    asleep = {"FAULT": "step:1:3:nap,step:1:9:nap"}  # the signal comes while the other rank waits for it
    with start_python(*command(2, *settings, name="stopped"), cwd=shared_folder, environ=asleep) as process:
        wait_until(lambda: len(stopped.logged()) >= 3, "three steps")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75, process.communicate()[0]
    assert stopped.ending is not None
    assert stopped.ending.step == stopped.committed() < 20  # type: ignore[operator]
    alone = train_ten_steps(shared_folder / "alone", settings)
    assert_same_bits(again(shared_folder, 2, *settings, name="stopped"), alone)
