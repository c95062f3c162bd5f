"""Run folders that another start holds or has left, full disks, and what several parts of the program meet together."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bad.case import Case, standing_in, through, through_entrypoint, through_rank, through_train
from bad.saved import run as finished
from evaluations import evaluate, read_together

from entrypoint import launch
from train import file_lock, files
from train.data import workers
from train.evaluation.totals import EvaluationTotals
from train.run import folder, lock
from train.tasks.classification import Classification

RUN = ("runs", "runs/*")
train = partial(Case, door=through_train, line=("run.name=run",))


def keep_open(folder: Path) -> None:
    """The run's folder, held by this process, which lives."""
    (folder / "runs/run").mkdir(parents=True)
    file_lock.acquire_lock(
        folder / "runs/run" / lock.LOCK_NAME, None, file_lock.this_process_as_holder(launch_id="another", job="77")
    )


def nowhere(environ: object) -> None:
    return None


def too_many(folder: Path) -> None:
    workers.UnreadableLog(1, print).merge({("training", 1): "a.png: cut", ("training", 2): "b.png: cut"})


def misshapen(folder: Path) -> None:
    evaluate(Classification(classes=("a", "b")), torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


def unanswered(folder: Path) -> None:
    read_together([EvaluationTotals()])


CASES = [
    train(
        id="folder-held",
        prepare=keep_open,
        code=73,
        says=("runs/run",),
        fix="run.name",
        row="26",
    ),
    Case(
        id="disk-too-small",
        door=through(lambda folder: files.refuse_full_disk(folder, 10**18)),
        code=74,
        says=("ENOSPC", "1000000000000.0 MB free"),
        fix="space",
        row="14",
    ),
    Case(
        id="no-scratch",
        door=standing_in(through_train, folder, "try_make_temporary_folder", nowhere),
        line=("eval", "runs/run"),
        prepare=finished,
        code=73,
        says=("no temporary folder can be made", "/dev/shm"),
        fix="TMPDIR",
        row="57",
    ),
    Case(
        id="killed-for-memory",
        door=standing_in(through_entrypoint, launch, "count_oom_kills", itertools.count().__next__),
        line=("run", "--device", "cpu", "sh", "-c", "kill -9 $$"),
        code=71,
        says=("rank 0 of 1", "out of host memory"),
        fix="more memory",
        writes=("logs", "logs/*"),
        row="40",
    ),
    Case(
        id="broken-on-two-ranks",
        door=through(too_many),
        code=65,
        says=("more than 1 image file cannot be read", "a.png", "b.png"),
        fix="data.max_bad_images",
        row="42",
    ),
    Case(id="answers-misshapen", door=through(misshapen), code=65, says=("[2, 3]", "[2, 2]"), fix="last layer"),
    Case(id="answers-none", door=through(unanswered), code=65, says=("no validation image",), fix="train data check"),
    Case(
        id="npz-is-a-folder",
        door=through_train,
        line=("check", "data.name=npz", "data.root=e"),
        prepare=lambda folder: (folder / "e/train.npz").mkdir(parents=True),
        code=66,
        says=("data.root cannot be read", "Is a directory", "e/train.npz"),
        fix="set data.root",
    ),
    Case(
        id="npz-is-a-folder-for-a-rank",
        door=through_rank,
        line=("data.name=npz", "data.root=e"),
        prepare=lambda folder: (folder / "e/train.npz").mkdir(parents=True),
        code=66,
        says=("data.root cannot be read", "Is a directory", "e/train.npz"),
        fix="set data.root",
        writes=RUN,
    ),
    Case(
        id="npz-with-a-password",
        door=through_train,
        line=("check", "data.name=npz", "data.root=d.npz"),
        prepare=lambda folder: locked(folder / "d.npz"),
        code=65,
        says=("d.npz is no whole .npz file", "password"),
        fix="write the file again",
    ),
    Case(
        id="npz-broken-for-check",
        door=through_train,
        line=("check", "data.name=npz", "data.root=d.npz"),
        prepare=lambda folder: (folder / "d.npz").write_bytes(b"PK" + bytes(99)),
        code=65,
        says=("d.npz is no whole .npz file",),
        fix="write the file again",
    ),
]


def locked(path: Path) -> None:
    """An archive that says of its first entry that it is encrypted."""
    np.savez(path, images=np.zeros((4, 8, 8), np.uint8), labels=np.arange(4))
    data = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(magic, at + 1)) >= 0:
            data[at + flags] |= 1
    path.write_bytes(bytes(data))
