"""Pixels out of memory and from workers, with broken images among them."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from numbered import BAD, Numbers, collate
from processes import python, unmeasured

from entrypoint import ExitCode, Failure
from train.config.batches import StepCounts, compute_batch_sizes
from train.data import in_memory, workers
from train.data.batch import Batch
from train.data.sampler import BatchSampler
from train.data.splits import SampleIndices
from train.data.workers import UnreadableLog

Made = in_memory.DeviceDataset | in_memory.HostDataset | workers.WorkerLoader
CPU = torch.device("cpu")


def pool(
    kind: str, *, bad: tuple[int, ...] = BAD, most: int = 3, replace: bool = True, code: ExitCode = ExitCode.DATA
) -> tuple[Made, UnreadableLog]:
    book = UnreadableLog(most, lambda line: None)
    side = workers.Split(
        name="side", source=Numbers(bad, code), collate=collate, ledger=book, most=most, replace=replace
    )
    if kind == "memory":
        return in_memory.load_in_memory(side, (1, 1, 1), CPU, 2), book
    return workers.WorkerLoader(side, int(kind), CPU), book


def drawn(made: Made, *wanted: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    for _, batch in made.read(enumerate([np.array(samples, np.int64) for samples in wanted])):
        yield images(batch).flatten().tolist(), batch["label"].tolist()


def images(batch: Batch) -> torch.Tensor:
    """Those of the batch: a reader that keeps all images in memory says which they are."""
    selected: torch.Tensor = batch["image"][batch.get("row", slice(None))]
    return selected


KINDS = ["memory", "0", "2"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 1024])
def test_a_broken_image_s_place_is_taken_by_the_next_one_with_its_label(
    kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_memory, "IMAGES_PER_CHUNK", chunk)
    given = list(drawn(pool(kind)[0], [1, 2, 3, 4], [9, 9]))
    assert given == [([1, 4, 4, 4], [10, 40, 40, 40]), ([0, 0], [0, 0])]


@pytest.mark.parametrize("kind", [*KINDS, "memory of the host"])
def test_all_that_a_task_collates_comes_with_its_samples_unknown_to_the_readers(kind: str) -> None:
    def with_mask(pixels: torch.Tensor, labels: torch.Tensor) -> Batch:
        return {**collate(pixels, labels), "mask": pixels.flatten(1).repeat(1, 3)}

    side = workers.Split(
        name="side",
        source=Numbers(BAD, ExitCode.DATA),
        collate=with_mask,
        ledger=UnreadableLog(3, print),
        most=3,
        replace=True,
    )
    made: Made
    if kind in ("0", "2"):
        made = workers.WorkerLoader(side, int(kind), CPU)
    else:
        made = in_memory.load_in_memory(side, (1, 1, 1), CPU, 2)
        made = made if kind == "memory" else in_memory.HostDataset(made.samples, made.readable, CPU)
    ((_, batch),) = made.read([("request", np.array([1, 2]))])
    assert (batch["mask"].tolist(), batch["sample"].dtype) == ([[1] * 3, [4] * 3], torch.int64)


class FrozenCounts(Numbers):
    """Gives how many objects the garbage collector of this process leaves alone."""

    def read(self, samples: SampleIndices) -> torch.Tensor:
        return torch.full((len(samples), 1, 1, 1), min(gc.get_freeze_count(), 255), dtype=torch.uint8)


def test_a_worker_s_garbage_collection_leaves_alone_what_it_shares() -> None:
    """It would copy that. The process that started the worker collects as before."""
    source = FrozenCounts((), ExitCode.DATA)
    side = workers.Split(
        name="side", source=source, collate=collate, ledger=UnreadableLog(0, print), most=0, replace=True
    )
    before = gc.get_freeze_count()
    ((_, batch),) = workers.WorkerLoader(side, 1, CPU).read([(0, np.array([1]))])
    assert (batch["image"].item(), gc.get_freeze_count()) == (255, before)


def test_more_workers_than_processors_are_not_warned_of_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})  # a warning would be an error here
    assert list(drawn(pool("2")[0], [1])) == [([1], [10])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_comes_back_with_its_own_pixels_also_where_another_is_left_out(kind: str) -> None:
    made, _ = pool(kind, bad=(2, 3), replace=False)
    requests = [("first", np.array([1])), ("broken", np.array([2, 3])), ("last", np.array([4, 2]))]
    read = made.read(requests)
    assert [(name, images(batch).flatten().tolist()) for name, batch in read] == [
        ("first", [1]),
        ("last", [4]),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_in_the_validation_split_it_is_left_out(kind: str) -> None:
    given = list(drawn(pool(kind, replace=False)[0], [1, 2, 3, 4], [2, 3], [9, 8]))
    assert given == [([1, 4], [10, 40]), ([8], [80])]


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_were_met_are_in_the_ledger(kind: str) -> None:
    made, book = pool(kind)
    list(drawn(made, list(range(10))))
    assert sorted(book) == ["2.png", "3.png", "9.png"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [0, 1, 2])
def test_one_too_many_ends_it(kind: str, most: int) -> None:
    with pytest.raises(Failure) as caught:
        list(drawn(pool(kind, most=most)[0], [1, 2], [3, 4], [8, 9]))
    assert caught.value.code == ExitCode.DATA


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_gone_ends_it_though_broken_ones_are_allowed(kind: str) -> None:
    with pytest.raises(Failure, match="image 2") as caught:
        list(drawn(pool(kind, code=ExitCode.NO_INPUT)[0], [1, 2]))
    assert caught.value.code == ExitCode.NO_INPUT


def test_a_stream_that_fails_ends_its_workers_at_once() -> None:
    with pytest.raises(Failure) as held:
        list(drawn(pool("2", code=ExitCode.NO_INPUT)[0], [1, 2]))
    assert (held.value.code, multiprocessing.active_children()) == (ExitCode.NO_INPUT, [])


class Drawing(Numbers):
    """Its pixels are drawn by whoever reads them."""

    def read(self, samples: SampleIndices) -> torch.Tensor:
        return torch.randint(2**63 - 1, (len(samples), 1, 1, 1))


def test_what_a_source_draws_in_workers_differs_by_seed_rank_and_step_and_is_drawn_again_by_the_same() -> None:
    side = workers.Split(
        name="side", source=Drawing((), ExitCode.DATA), collate=collate, ledger=pool("0")[1], most=0, replace=True
    )
    parts, counted, found = compute_batch_sizes(8, 2, 2), StepCounts(per_epoch=50, total=100, dropped=0), {}
    for seed, rank, step in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 50)):
        course = BatchSampler(batches=parts, steps=counted, samples=400, rank=rank, seed=seed)
        for again in range(2):
            requests = ((piece, piece.samples % 10) for piece in islice(course.micro_batches(step), 2))
            read = workers.WorkerLoader(side, 1, CPU).read(requests)
            found[seed, rank, step, again] = tuple(n for _, batch in read for n in batch["image"].flatten().tolist())
    assert len(set(found.values())) == 5
    assert all(found[*key, 0] == found[*key, 1] for *key, _ in found)


def test_workers_that_stay_read_the_next_stream_too() -> None:
    made = replace(pool("2", bad=())[0], stay=True)
    first = list(drawn(made, [1, 2], [3]))
    there = [worker.pid for worker in multiprocessing.active_children()]
    second = list(drawn(made, [4], [5, 6]))
    assert (first, second) == ([([1, 2], [10, 20]), ([3], [30])], [([4], [40]), ([5, 6], [50, 60])])
    assert [worker.pid for worker in multiprocessing.active_children()] == there != []


def test_a_stream_that_is_left_unfinished_leaves_nothing_for_the_next() -> None:
    made = replace(pool("2", bad=())[0], stay=True)
    left = drawn(made, *([number] for number in range(9)))
    assert next(left) == ([0], [0])
    left.close()
    assert list(drawn(made, [7], [8])) == [([7], [70]), ([8], [80])]


def test_workers_that_stay_end_with_a_failure() -> None:
    made = replace(pool("2", code=ExitCode.NO_INPUT)[0], stay=True)
    with pytest.raises(Failure) as held:
        list(drawn(made, [1, 2]))
    assert (held.value.code, multiprocessing.active_children()) == (ExitCode.NO_INPUT, [])


def stream_that_raises(error: Exception, monkeypatch: pytest.MonkeyPatch) -> workers.WorkerLoader:
    """Two workers, which torch says this of."""

    def broken(ready: object) -> Iterator[object]:
        yield from ()
        raise error

    monkeypatch.setattr(workers, "_start_workers", broken)
    made, _ = pool("2")
    assert isinstance(made, workers.WorkerLoader)
    return made


@pytest.mark.parametrize("error", [ConnectionResetError, EOFError, FileNotFoundError])
def test_a_worker_that_dies_while_its_batch_is_taken_over_is_named(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Failure, match="a data worker process died") as caught:
        list(drawn(stream_that_raises(error(), monkeypatch), [1, 2]))
    assert caught.value.code == ExitCode.RESOURCE


def test_an_error_of_the_source_itself_is_not_blamed_on_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    told = FileNotFoundError("Caught FileNotFoundError in DataLoader worker process 0.")
    with pytest.raises(FileNotFoundError):
        list(drawn(stream_that_raises(told, monkeypatch), [1, 2]))


@pytest.mark.parametrize("kind", ["0", "2"])
def test_reading_takes_nothing_from_the_generator_that_dropout_uses(kind: str) -> None:
    before = torch.get_rng_state()
    list(drawn(pool(kind)[0], [1, 2], [3, 4]))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_whole_side_needs_no_mask() -> None:
    made, _ = pool("memory", bad=(), replace=False)
    assert isinstance(made, in_memory.DeviceDataset)
    assert made.readable is None


FULL = """
import numpy as np, torch
from entrypoint import Failure
from train.config.batches import StepCounts, compute_batch_sizes
from train.data.sampler import BatchSampler
from train.data.splits import SampleIndices, SampleSource
from train.data import workers
from train.data.workers import UnreadableLog
class Large(SampleSource):
    labels = torch.arange(8)
    def read(self, samples): return torch.zeros((len(samples), 3, 1024, 1024), dtype=torch.uint8)
def collate(images, labels): return {"image": images, "label": labels}
ledger = UnreadableLog(0, print)
side = workers.Split(name="side", source=Large(), collate=collate, ledger=ledger, most=0, replace=True)
try: list(workers.WorkerLoader(side, 2, torch.device("cpu")).read([(0, np.array([0])), (1, np.array([1]))]))
except Failure as failure: print(failure)
"""


def test_full_shared_memory_is_told_with_the_sizes_and_the_option_that_gives_more() -> None:
    shut_in = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    command = [*shut_in, mount, "sh", sys.executable, "-c", FULL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"machine: no private /dev/shm: {done.stderr.strip()}")
    assert "ERROR[71]" in done.stdout, done.stdout + done.stderr
    assert ("/dev/shm of 1 MiB; one batch takes 3.0 MiB" in done.stdout, "--shm-size" in done.stdout) == (True, True)


def test_what_torch_says_of_another_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: torch.Tensor) -> None:
        raise RuntimeError("unable to open shared memory object: Too many open files (24)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    with pytest.raises(Failure, match="shared memory") as caught:
        workers.move_to_shared_memory(torch.zeros(1))
    assert "Too many open files" in str(caught.value.found)


UNFINISHED = (
    FULL.split("try:")[0].replace("1024, 1024", "8, 8")
    + """
stream = workers.WorkerLoader(side, 6, torch.device("cpu")).read((0, np.array([0])) for _ in range(99))
next(stream)
"""
)


def test_a_program_that_leaves_a_stream_unfinished_ends_without_a_word() -> None:
    """A word would be an exception between the ends of two workers: then the second lives on, and is waited for."""
    command = [sys.executable, "-W", "ignore", "-c", UNFINISHED]  # torch counts cores
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


LEFT = """
import multiprocessing, os
from multiprocessing.connection import Client
from multiprocessing.resource_sharer import DupFd
from train.data import workers

def work(line):
    workers._init_worker(0)
    line.send(DupFd(os.pipe()[1]))
    line.recv()

line, its = multiprocessing.Pipe()
worker = multiprocessing.get_context("fork").Process(target=work, args=(its,))
worker.start()
batch = line.recv()
Client(batch._id[0], authkey=multiprocessing.current_process().authkey).close()
os.close(batch.detach())
line.send("done")
worker.join(60)
"""


def test_a_worker_is_silent_where_its_rank_ends_while_it_takes_a_batch() -> None:
    done = python("-c", LEFT, env=unmeasured(), timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_tells_of_any_other_trouble_with_handing_over(capsys: pytest.CaptureFixture[str]) -> None:
    workers._ignore_lost_parent(OSError, OSError("too many open files"), None)
    assert "too many open files" in capsys.readouterr().err
