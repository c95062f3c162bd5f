"""Samples come from memory and from workers, and broken images are replaced or left out, said once and counted."""

from __future__ import annotations

import errno
import gc
import multiprocessing.reduction
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
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.config.batches import StepCounts, compute_batch_sizes
from train.data import in_memory, workers
from train.data.batch import Batch
from train.data.sampler import BatchSampler
from train.data.splits import SampleIndices
from train.data.workers import SkipUnreadable, UnreadableLog

Made = in_memory.DeviceDataset | in_memory.HostDataset | workers.WorkerLoader
CPU = torch.device("cpu")


def open_reader(
    kind: str, *, bad: tuple[int, ...] = BAD, most: int = 3, replace: bool = True, code: ExitCode = ExitCode.DATA
) -> tuple[Made, UnreadableLog]:
    book = UnreadableLog(most, lambda line: None)
    side = workers.Split(
        name="side", source=Numbers(bad, code), collate=collate, ledger=book, most=most, replace=replace
    )
    if kind == "memory":
        return in_memory.load_in_memory(side, (1, 1, 1), CPU, 2), book
    return workers.WorkerLoader(side, int(kind), CPU), book


def drawn(made: Made, *requests: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    for _, batch in made.read(enumerate([np.array(samples, np.int64) for samples in requests])):
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
    given = list(drawn(open_reader(kind)[0], [1, 2, 3, 4], [9, 9]))
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
    assert list(drawn(open_reader("2")[0], [1])) == [([1], [10])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_comes_back_with_its_own_pixels_also_where_another_is_left_out(kind: str) -> None:
    made, _ = open_reader(kind, bad=(2, 3), replace=False)
    requests = [("first", np.array([1])), ("broken", np.array([2, 3])), ("last", np.array([4, 2]))]
    read = made.read(requests)
    assert [(name, images(batch).flatten().tolist()) for name, batch in read] == [
        ("first", [1]),
        ("last", [4]),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_in_the_validation_split_it_is_left_out(kind: str) -> None:
    given = list(drawn(open_reader(kind, replace=False)[0], [1, 2, 3, 4], [2, 3], [9, 8]))
    assert given == [([1, 4], [10, 40]), ([8], [80])]


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_were_met_are_in_the_ledger(kind: str) -> None:
    made, book = open_reader(kind)
    list(drawn(made, list(range(10))))
    assert sorted(book) == ["2.png", "3.png", "9.png"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [0, 1, 2])
def test_one_too_many_ends_it(kind: str, most: int) -> None:
    with pytest.raises(Failure) as caught:
        list(drawn(open_reader(kind, most=most)[0], [1, 2], [3, 4], [8, 9]))
    assert caught.value.code == ExitCode.DATA


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_gone_ends_it_though_broken_ones_are_allowed(kind: str) -> None:
    with pytest.raises(Failure, match="image 2") as caught:
        list(drawn(open_reader(kind, code=ExitCode.NO_INPUT)[0], [1, 2]))
    assert caught.value.code == ExitCode.NO_INPUT


def test_a_stream_that_fails_ends_its_workers_at_once() -> None:
    with pytest.raises(Failure) as held:
        list(drawn(open_reader("2", code=ExitCode.NO_INPUT)[0], [1, 2]))
    assert (held.value.code, multiprocessing.active_children()) == (ExitCode.NO_INPUT, [])


class Drawing(Numbers):
    """Its pixels are drawn by whoever reads them."""

    def read(self, samples: SampleIndices) -> torch.Tensor:
        return torch.randint(2**63 - 1, (len(samples), 1, 1, 1))


def test_what_a_source_draws_in_workers_differs_by_seed_rank_and_step_and_is_drawn_again_by_the_same() -> None:
    side = workers.Split(
        name="side",
        source=Drawing((), ExitCode.DATA),
        collate=collate,
        ledger=open_reader("0")[1],
        most=0,
        replace=True,
    )
    parts, counted, draws = compute_batch_sizes(8, 2, 2), StepCounts(per_epoch=50, total=100, dropped=0), {}
    for seed, rank, step in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 50)):
        course = BatchSampler(batches=parts, steps=counted, samples=400, rank=rank, seed=seed)
        for again in range(2):
            requests = ((piece, piece.samples % 10) for piece in islice(course.micro_batches(step), 2))
            read = workers.WorkerLoader(side, 1, CPU).read(requests)
            draws[seed, rank, step, again] = tuple(n for _, batch in read for n in batch["image"].flatten().tolist())
    assert len(set(draws.values())) == 5
    assert all(draws[*key, 0] == draws[*key, 1] for *key, _ in draws)


def test_workers_that_stay_read_the_next_stream_too() -> None:
    made = replace(open_reader("2", bad=())[0], stay=True)
    first = list(drawn(made, [1, 2], [3]))
    processes = [worker.pid for worker in multiprocessing.active_children()]
    second = list(drawn(made, [4], [5, 6]))
    assert (first, second) == ([([1, 2], [10, 20]), ([3], [30])], [([4], [40]), ([5, 6], [50, 60])])
    assert [worker.pid for worker in multiprocessing.active_children()] == processes != []


def test_a_stream_that_is_left_unfinished_leaves_nothing_for_the_next() -> None:
    made = replace(open_reader("2", bad=())[0], stay=True)
    left = drawn(made, *([number] for number in range(9)))
    assert next(left) == ([0], [0])
    left.close()
    assert list(drawn(made, [7], [8])) == [([7], [70]), ([8], [80])]


def test_workers_that_stay_end_with_a_failure() -> None:
    made = replace(open_reader("2", code=ExitCode.NO_INPUT)[0], stay=True)
    with pytest.raises(Failure) as held:
        list(drawn(made, [1, 2]))
    assert (held.value.code, multiprocessing.active_children()) == (ExitCode.NO_INPUT, [])


def stream_that_raises(error: Exception, monkeypatch: pytest.MonkeyPatch) -> workers.WorkerLoader:
    """Two workers, which torch says this of."""

    def broken(ready: object) -> Iterator[object]:
        yield from ()
        raise error

    monkeypatch.setattr(workers, "_start_workers", broken)
    made, _ = open_reader("2")
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
    error = FileNotFoundError("Caught FileNotFoundError in DataLoader worker process 0.")
    with pytest.raises(FileNotFoundError):
        list(drawn(stream_that_raises(error, monkeypatch), [1, 2]))


@pytest.mark.parametrize("kind", ["0", "2"])
def test_reading_takes_nothing_from_the_generator_that_dropout_uses(kind: str) -> None:
    before = torch.get_rng_state()
    list(drawn(open_reader(kind)[0], [1, 2], [3, 4]))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_whole_side_needs_no_mask() -> None:
    made, _ = open_reader("memory", bad=(), replace=False)
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


def test_another_limit_on_shared_memory_has_its_own_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: torch.Tensor) -> None:
        raise RuntimeError("unable to open shared memory object: Too many open files (24)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    with pytest.raises(Failure, match="opens no further file") as caught:
        workers.move_to_shared_memory(torch.zeros(1))
    assert "Too many open files" in str(caught.value.found)
    assert "ulimit -n" in caught.value.fix


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
    workers._handle_sender_error(ValueError, ValueError("of another kind"), None)
    assert "of another kind" in capsys.readouterr().err


def no_file(*_: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_batch_that_a_worker_cannot_send_is_one_failure_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(multiprocessing.reduction, "DupFd", no_file)  # the workers are forks of this process
    made, _ = open_reader("2", bad=())
    with pytest.raises(Failure, match="opens no further file") as caught:
        list(drawn(made, [1, 2], [3, 4]))
    assert (caught.value.code, "ulimit -n" in caught.value.fix) == (ExitCode.RESOURCE, True)
    assert capfd.readouterr().err == ""


NO_FILE = (
    FULL.split("try:")[0].replace("1024, 1024", "8, 8")
    + """
import errno, multiprocessing.connection
from train.run import errors
def refuse(listener): raise OSError(errno.EMFILE, "Too many open files")
multiprocessing.connection.Listener.accept = refuse
workers.LIMIT_PAUSE_S = 0.001
try: list(workers.WorkerLoader(side, 1, torch.device("cpu")).read([(0, np.array([0]))]))
except Exception as error: print(errors.as_failure(error))
"""
)


def test_a_worker_that_never_gets_a_file_to_answer_its_rank_ends_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", NO_FILE], capture_output=True, text=True, timeout=100, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("ERROR[71] a data worker process died")
    assert "ulimit -n" in done.stdout


class Shelf:
    """Twelve one-number images, some of them broken."""

    def __init__(self, *bad: int, code: ExitCode = ExitCode.DATA) -> None:
        self.bad, self.code, self.asked = bad, code, 0

    def read(self, samples: SampleIndices) -> Tensor:
        self.asked += 1
        for sample in samples:
            if sample in self.bad:
                raise Failure(f"image {sample}", found=f"{sample}.png: cut", fix="mend it", code=self.code)
        return torch.from_numpy(samples)


def tolerant(*bad: int, most: int = 9, replace: bool = True, code: ExitCode = ExitCode.DATA) -> SkipUnreadable:
    return SkipUnreadable(Shelf(*bad, code=code).read, 12, most=most, replace=replace)


@pytest.mark.parametrize(
    ("bad", "asked", "given"),
    [
        ((), [3, 1], [3, 1]),
        ((3,), [3, 1], [4, 1]),
        ((3, 4), [3, 4, 5], [5, 5, 5]),
        ((11,), [11], [0]),
        ((10, 11, 0, 1), [10, 2, 11], [2, 2, 2]),
        ((3,), [3, 3], [4, 4]),
    ],
)
def test_in_training_the_next_readable_one_takes_its_place(bad: tuple[int], asked: list[int], given: list[int]) -> None:
    pixels, taken, unreadable = tolerant(*bad).read(np.array(asked))
    assert pixels is not None
    assert (pixels.tolist(), taken.tolist()) == (given, given)
    assert unreadable == {sample: f"{sample}.png: cut" for sample in bad}


@pytest.mark.parametrize(("bad", "given"), [((3,), [1, 2]), ((1, 3), [2]), ((7,), [3, 1, 2])])
def test_in_evaluation_it_is_left_out(bad: tuple[int], given: list[int]) -> None:
    pixels, taken, _ = tolerant(*bad, replace=False).read(np.array([3, 1, 2]))
    assert pixels is not None
    assert pixels.tolist() == taken.tolist() == given


def test_of_a_block_with_no_readable_one_there_are_no_pixels() -> None:
    pixels, taken, unreadable = tolerant(1, 2, replace=False).read(np.array([1, 2]))
    assert (pixels, len(taken), len(unreadable)) == (None, 0, 2)


def test_a_known_one_is_not_read_again_and_not_news() -> None:
    shelf = Shelf(3)
    reader = SkipUnreadable(shelf.read, 12, most=1, replace=True)
    reader.read(np.array([3, 1]))
    before = shelf.asked
    assert reader.read(np.array([1, 3]))[2] == {}
    assert shelf.asked == before + 1


def test_without_tolerance_the_first_failure_is_the_source_s_own() -> None:
    with pytest.raises(Failure, match="image 4"):
        tolerant(4, 5, most=0).read(np.array([1, 4, 5]))


@pytest.mark.parametrize("code", [ExitCode.NO_INPUT, ExitCode.IO, ExitCode.RESOURCE])
def test_what_is_no_broken_image_ends_the_run(code: ExitCode) -> None:
    with pytest.raises(Failure, match="image 4") as caught:
        tolerant(4, code=code).read(np.array([4]))
    assert caught.value.code == code


def test_a_failure_that_no_single_image_repeats_ends_the_run() -> None:
    def read(samples: SampleIndices) -> Tensor:
        if len(samples) > 1:
            raise Failure("only together", fix="-", code=ExitCode.DATA)
        return torch.from_numpy(samples)

    with pytest.raises(Failure, match="only together"):
        SkipUnreadable(read, 12, most=5, replace=True).read(np.array([1, 2]))


@pytest.mark.parametrize("replace", [True, False])
def test_one_more_than_allowed_names_all(replace: bool) -> None:
    with pytest.raises(Failure) as caught:
        tolerant(1, 2, 3, most=2, replace=replace).read(np.arange(5))
    assert (caught.value.code, caught.value.found) == (ExitCode.DATA, "1.png: cut; 2.png: cut; 3.png: cut")
    assert "data.max_bad_images" in str(caught.value)


@pytest.mark.parametrize("replace", [True, False])
def test_nothing_readable_ends_however_many_are_allowed(replace: bool) -> None:
    with pytest.raises(Failure, match="cannot be read"):
        tolerant(*range(12), most=99, replace=replace).read(np.arange(12))


def ledger(most: int) -> tuple[UnreadableLog, list[str]]:
    lines: list[str] = []
    return UnreadableLog(most, lines.append), lines


def test_each_is_said_once_and_counted_once() -> None:
    book, lines = ledger(2)
    for _ in range(3):
        book.add("training", {4: "a.png: cut"})
    book.add("validation", {4: "b.png: cut"})
    assert lines == [
        "skipped a broken image (1 of at most 2): a.png: cut",
        "skipped a broken image (2 of at most 2): b.png: cut",
    ]
    assert list(book) == ["a.png: cut", "b.png: cut"]


@pytest.mark.parametrize(
    ("unreadable", "summary"),
    [
        ({}, None),
        ({4: "a.png"}, "1 broken image skipped (data.max_bad_images: 2)"),
        ({4: "a.png", 5: "b.png"}, "2 broken images skipped (data.max_bad_images: 2)"),
    ],
)
def test_the_end_of_a_run_says_how_many(unreadable: dict[int, str], summary: str | None) -> None:
    book, _ = ledger(2)
    book.add("training", unreadable)
    assert book.summary == summary


def test_both_sides_count_together() -> None:
    book, _ = ledger(1)
    book.add("training", {4: "a.png: cut"})
    with pytest.raises(Failure, match="more than 1 image file cannot") as caught:
        book.add("validation", {4: "b.png: cut"})
    assert caught.value.found == "a.png: cut; b.png: cut"


def test_what_other_ranks_met_counts_too() -> None:
    first, second = ledger(1)[0], ledger(1)[0]
    first.add("training", {4: "a.png: cut"})
    second.add("training", {5: "b.png: cut"})
    with pytest.raises(Failure, match="more than 1"):
        first.merge(second.unreadable)


def test_of_many_the_first_ten_are_named() -> None:
    book, _ = ledger(11)
    with pytest.raises(Failure) as caught:
        book.add("training", {number: f"{number:02d}.png" for number in range(12)})
    assert str(caught.value.found).endswith("09.png; and 2 more")
