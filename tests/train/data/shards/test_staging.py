"""Shards are copied to a disk of the node while a training reads them, and the copies are removed at its end."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hosts import together
from jobs import built, trained
from numbered import collate
from processes import python, unmeasured, wait_until
from runs import Run
from tars import data_of, numbered, write_tar

from entrypoint import ExitCode, Failure
from train import __main__ as front
from train.config.resume_rules import changed_keys
from train.config.schema import DataConfig
from train.data import registry
from train.data.shards import index as shard_index
from train.data.shards import source as shard_source
from train.data.shards import staging
from train.data.shards.index import ShardIndex
from train.data.shards.source import OpenShards, ShardSource
from train.data.shards.staging import StagePlan
from train.data.workers import Split, UnreadableLog, WorkerLoader

IMAGES = 40
NAMES = ("a-00.tar", "a-01.tar")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two indexed shards of 20 images each."""
    for number, name in enumerate(NAMES):
        write_tar(tmp_path / "data" / name, numbered(20 * number, 20))
    shard_index.write_index(tmp_path / "data", processes=1)
    return tmp_path / "data"


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies"


def copy(root: Path, copies: Path, index: ShardIndex | None = None) -> list[str]:
    """Copy all shards; returns the warnings."""
    warnings = list[str]()
    index = index or shard_index.read_index(root)
    staging.copy_shards(index, copies, replace(staging.plan_copies(index, copies), keep_free=0), warnings.append)
    return warnings


def copied(copies: Path) -> list[str]:
    """The files in the folder."""
    return sorted(path.relative_to(copies).as_posix() for path in copies.rglob("*") if path.is_file())


def staged(root: Path, copies: Path) -> ShardSource:
    """The training split, which reads copies if there are any."""
    splits = shard_source.with_copies(registry.open_splits(data_of(root, val_fraction=0.0)), copies)
    assert isinstance(splits.training, ShardSource)
    return splits.training


def values(source: ShardSource, workers: int | None = None) -> list[int]:
    """The value of each image: read alone, or as a training reads them with so many workers."""
    samples = np.arange(len(source.labels))
    if workers is None:
        return source.read(samples)[:, 0, 0, 0].tolist()
    split = Split(
        name="training",
        source=source,
        collate=collate,
        ledger=UnreadableLog(0, print),
        most=0,
        replace=True,
    )
    loader = WorkerLoader(split, workers, torch.device("cpu"))
    batches = loader.read((number, each) for number, each in enumerate(samples.reshape(-1, 8)))
    return [value for _, batch in batches for value in batch["image"][:, 0, 0, 0].tolist()]


def flip_byte_of_first_image(path: Path, index: ShardIndex) -> None:
    content = bytearray(path.read_bytes())
    content[int(index.entries["offset"][0]) + 20] ^= 1
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# Copying
def test_copies_have_the_bytes_of_the_shards(root: Path, copies: Path) -> None:
    assert copy(root, copies) == []
    assert copied(copies) == [*NAMES]
    assert all((copies / name).read_bytes() == (root / name).read_bytes() for name in NAMES)


def test_validation_shards_are_copied_and_test_shards_are_not(root: Path, copies: Path) -> None:
    write_tar(root / "val" / "00.tar", numbered(100, 4))
    write_tar(root / "test" / "00.tar", numbered(200, 4))
    shard_index.write_index(root, processes=1)
    assert copy(root, copies) == []
    assert copied(copies) == [*NAMES, "val/00.tar"]


@pytest.mark.parametrize("workers", [None, 0, 2], ids=["alone", "ahead", "ahead-for-workers"])
def test_images_are_read_from_the_copies(root: Path, copies: Path, workers: int | None) -> None:
    source = staged(root, copies)
    copy(root, copies)
    for name in NAMES:
        (root / name).unlink()
    assert values(source, workers) == list(range(IMAGES))


def test_images_are_read_from_the_shards_while_there_is_no_copy(root: Path, copies: Path) -> None:
    assert values(staged(root, copies)) == list(range(IMAGES))


def inode(handle: int) -> int:
    return os.fstat(handle).st_ino


def test_an_open_shard_is_exchanged_for_its_copy(root: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(shard_source.time, "monotonic", lambda: clock[0])
    opened, path, duplicate = OpenShards(), root / NAMES[0], copies / NAMES[0]
    assert inode(opened.handle(str(path), str(duplicate))) == path.stat().st_ino
    copy(root, copies)
    clock[0] += shard_source.LOOK_FOR_COPY_S
    assert inode(opened.handle(str(path), str(duplicate))) == duplicate.stat().st_ino


def test_a_copy_is_not_looked_for_at_each_image(root: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_source.time, "monotonic", lambda: 0.0)
    names, real = list[str](), os.open

    def count(path: str, *arguments: int) -> int:
        names.append(path)
        return real(path, *arguments)

    monkeypatch.setattr(shard_source.os, "open", count)
    opened, path, duplicate = OpenShards(), str(root / NAMES[0]), str(copies / NAMES[0])
    for _ in range(10):
        opened.handle(path, duplicate)
    assert names == [duplicate, path]


def test_the_copy_of_a_shard_that_was_closed_meanwhile_is_opened_again(
    root: Path, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_source, "MAX_OPEN_SHARDS", 1)
    copy(root, copies)
    opened = OpenShards()
    for name in (*NAMES, *NAMES):
        handle = opened.handle(str(root / name), str(copies / name))
        assert inode(handle) == (copies / name).stat().st_ino


# What is not right
def test_a_shard_with_a_flipped_byte_is_named_and_not_copied(root: Path, copies: Path) -> None:
    flip_byte_of_first_image(root / NAMES[0], shard_index.read_index(root))
    (line,) = copy(root, copies)
    assert line.startswith(f"warning: data.stage: {root / NAMES[0]} is not what was indexed")
    assert copied(copies) == [NAMES[1]]


def test_a_shard_of_another_size_is_not_copied(root: Path, copies: Path) -> None:
    index = shard_index.read_index(root)
    with (root / NAMES[1]).open("ab") as file:
        file.write(bytes(512))
    assert len(copy(root, copies, index)) == 1
    assert copied(copies) == [NAMES[0]]


def test_an_image_of_a_damaged_copy_is_read_from_the_shard(
    root: Path, copies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(root, copies)
    flip_byte_of_first_image(copies / NAMES[0], shard_index.read_index(root))
    assert values(staged(root, copies)) == list(range(IMAGES))
    assert copied(copies) == [NAMES[1]]
    assert re.findall(r"data\.stage: \S+", capsys.readouterr().err) == [f"data.stage: {copies / NAMES[0]}"]


def test_a_disk_that_gets_full_ends_the_copying_with_one_warning(
    root: Path, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.copyfileobj

    def fill_disk(source: object, target: object, length: int) -> None:
        if NAMES[1] in str(getattr(source, "name", "")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target, length)  # type: ignore[misc]

    monkeypatch.setattr(staging.shutil, "copyfileobj", fill_disk)
    (line,) = copy(root, copies)
    assert f"copying stopped at {NAMES[1]}: No space left on device; 1 of 2 shards are copied" in line
    assert copied(copies) == [NAMES[0]]
    assert values(staged(root, copies)) == list(range(IMAGES))


def test_copying_ends_where_others_have_taken_the_space(
    root: Path, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = shard_index.read_index(root)
    monkeypatch.setattr(staging, "_free_bytes", lambda folder: 10**9)
    plan = StagePlan(shards=2, total=2, num_bytes=0, total_bytes=0, keep_free=10**9)
    warnings = list[str]()
    staging.copy_shards(index, copies, plan, warnings.append)
    assert len(warnings) == 1
    assert "less than 1.0 GB would stay free; 0 of 2 shards" in warnings[0]
    assert copied(copies) == []


# As many as fit
@pytest.mark.parametrize("fitting", [0, 1, 2])
def test_as_many_shards_are_copied_as_fit(
    root: Path, copies: Path, fitting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = shard_index.read_index(root)
    room = sum(shard.size for shard in index.shards[:fitting])
    monkeypatch.setattr(staging, "_free_bytes", lambda folder: keep_free + room)
    disk = os.statvfs(copies)
    keep_free = max(staging.MIN_FREE_BYTES, disk.f_blocks * disk.f_frsize // 20)
    monkeypatch.setattr(staging, "_is_in_memory", lambda folder: False)
    plan = staging.plan_copies(index, copies)
    assert (plan.shards, plan.total, plan.num_bytes, plan.keep_free) == (fitting, 2, room, keep_free)


def test_a_quarter_of_the_free_memory_stays_free(root: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "filesystem_type", lambda folder: "tmpfs")
    monkeypatch.setattr(staging, "free_memory_mib", lambda: 8 << 10)
    monkeypatch.setattr(staging.os, "statvfs", lambda folder: os.statvfs_result((1, 2**40, 1, 1, 2**40, 1, 1, 1, 1, 1)))
    assert staging.plan_copies(shard_index.read_index(root), copies).keep_free == 2 * 2**30


@pytest.mark.parametrize(
    ("shards", "same", "line"),
    [
        (150, True, "data.stage: 150 of 150 shards (150.0 of 150.0 GB) are copied to /d while training runs"),
        (12, True, "data.stage: 12 of 150 shards (12.0 of 150.0 GB) are copied to /d while training runs; there is no "
         "room for the others, which are read from data.root"),
        (12, False, "data.stage: each node copies at least 12 of 150 shards (12.0 of 150.0 GB) to /d while it trains"),
    ],
    ids=["all", "some", "nodes-differ"],
)  # fmt: skip
def test_one_line_says_how_much_is_copied(shards: int, same: bool, line: str) -> None:
    plan = StagePlan(shards=shards, total=150, num_bytes=shards * 10**9, total_bytes=150 * 10**9, keep_free=0)
    assert plan.describe("/d", is_same_everywhere=same) == line


# Folders that cannot be used
def outside(tmp_path: Path) -> Path:
    return tmp_path / "missing" / "stage"


def a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    return tmp_path / "file"


def inside(tmp_path: Path) -> Path:
    return tmp_path / "data" / "stage"


def the_root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("make_path", "code", "says"),
    [
        (outside, ExitCode.OUTPUT, "there is no folder"),
        (a_file, ExitCode.OUTPUT, "it is no folder"),
        (inside, ExitCode.USAGE, "lies inside data.root"),
        (the_root, ExitCode.USAGE, "lies inside data.root"),
    ],
)
def test_a_folder_that_cannot_hold_copies_is_refused(
    root: Path, tmp_path: Path, make_path: Callable[[Path], Path], code: ExitCode, says: str
) -> None:
    data = data_of(root, stage=str(make_path(tmp_path)))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Failure, match=says) as caught:
        staging.refuse_unusable_stage(data)
    assert caught.value.code == code
    assert "set data.stage to a folder on a disk of the node" in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_this_user_may_not_write_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging.os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(Failure, match="cannot be written") as caught:
        staging.refuse_unusable_stage(data_of(root, stage=str(tmp_path)))
    assert caught.value.code == ExitCode.OUTPUT


def test_what_only_writing_tells_is_refused_by_all_ranks(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: object) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(staging.tempfile, "mkdtemp", refuse)
    data = data_of(root, stage=str(tmp_path / "stage"))

    def codes(host: object) -> int:
        with pytest.raises(Failure, match=r"data\.stage") as caught:
            host.first(lambda: staging.make_folder(data))  # type: ignore[attr-defined]
        return caught.value.code

    assert together(codes, [0, 0]) == [ExitCode.OUTPUT] * 2


def test_the_last_folder_of_the_path_is_made(root: Path, tmp_path: Path) -> None:
    folder = staging.make_folder(data_of(root, stage=str(tmp_path / "stage")))
    assert folder.parent == tmp_path / "stage"


def test_train_check_refuses_what_train_refuses(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("data.name=shards", f"data.root={root}", "train.global_batch_size=8", f"data.stage={outside(tmp_path)}")
    assert front.run_command(["check", *settings], {}) == ExitCode.OUTPUT
    done = python("-m", "train", "--device", "cpu", *settings, cwd=tmp_path)
    assert done.returncode == ExitCode.OUTPUT
    for message in (capsys.readouterr().err, done.stderr):
        assert "cannot copy shards to data.stage" in message
    assert not (tmp_path / "runs").exists()


def test_only_shards_have_a_stage() -> None:
    with pytest.raises(Failure, match=r"data\.stage does not go with data\.name: folder") as caught:
        registry.refuse_inapplicable_keys(DataConfig(name="folder", stage="/tmp"))
    assert caught.value.code == ExitCode.USAGE


def test_a_run_may_go_on_with_another_stage() -> None:
    assert changed_keys({"data": {"stage": "/tmp/job-1"}}, {"data": {"stage": None}}) == {}


# Folders that a killed start has left
OWNER = """
import sys
from train.config.schema import DataConfig
from train.data.shards import staging
print(staging.make_folder(DataConfig(name="shards", root=sys.argv[1], stage=sys.argv[2])), flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(root: Path, stage: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that uses a folder for copies, with one in it; and the folder."""
    words = [sys.executable, "-c", OWNER, str(root), str(stage)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            (folder / "val").mkdir()
            (folder / "val" / NAMES[0]).touch()
            yield process, folder
        finally:
            process.kill()


def test_the_folder_of_a_killed_start_is_removed_by_the_next(root: Path, tmp_path: Path) -> None:
    with owner(root, tmp_path / "stage") as (process, left):
        process.kill()
        process.wait()
        assert left.exists()
        with owner(root, tmp_path / "stage") as (_, used):
            assert [*(tmp_path / "stage").iterdir()] == [used]


def test_a_folder_in_use_is_not_removed(root: Path, tmp_path: Path) -> None:
    with owner(root, tmp_path / "stage") as (_, used):
        staging.remove_left_folders(tmp_path / "stage")
        assert copied(used) == [staging.LOCK_FILE, f"val/{NAMES[0]}"]


def test_what_was_no_folder_for_copies_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / staging.LOCK_FILE).touch()
    (tmp_path / "stage" / f"{staging.FOLDER_PREFIX}mine").mkdir(parents=True)
    (tmp_path / "stage" / f"{staging.FOLDER_PREFIX}mine" / "notes.txt").touch()
    (tmp_path / "stage" / f"{staging.FOLDER_PREFIX}link").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    staging.remove_left_folders(tmp_path / "stage")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_another_start_removes_before_it_is_locked_is_made_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removed = staging.tempfile.mkdtemp, list[str]()

    def remove_first(**options: str) -> str:
        folder = real(**options)
        if not removed:
            removed.append(folder)
            staging.remove_left_folders(Path(options["dir"]))
        return folder

    monkeypatch.setattr(staging.tempfile, "mkdtemp", remove_first)
    folder = staging.make_folder(data_of(root, stage=str(tmp_path / "stage")))
    assert str(folder) not in removed
    assert (folder / staging.LOCK_FILE).exists()


# Trainings

# Eight steps in two epochs.
SETTINGS = (
    *("data.name=shards", "data.image_size=8", "data.loader=workers", "data.val_fraction=0.2"),
    *("data.readers=4", "model.args.width=4", "optim.schedule=constant", "optim.warmup_epochs=0", "optim.lr=0.02"),
    *("log.tensorboard=false", "train.epochs=2", "train.global_batch_size=8", "train.micro_batch_size=4"),
    *("train.reproducible=bitwise", "log.every_steps=1"),
)
STEPS = 8


def train(folder: Path, root: Path, name: str, ranks: int, *settings: str, fault: str = "") -> tuple[int, str]:
    """The exit code and the output of a training whose data worker is another process."""
    words = ("-m", "train", "--device", "cpu", "--procs-per-node", str(ranks), f"run.name={name}", *SETTINGS, *settings)
    environ = unmeasured() | ({"FAULT": fault} if fault else {})
    done = python(*words, f"data.root={root}", "data.workers=1", cwd=folder, env=environ)
    return done.returncode, done.stdout + done.stderr


def bits(folder: Path, name: str) -> str:
    weights = Run(folder=folder / "runs" / name).weights(STEPS)
    return hashlib.sha256(b"".join(weights[key].tobytes() for key in sorted(weights))).hexdigest()


def test_one_and_two_ranks_with_copies_end_with_the_bits_of_a_run_without(root: Path, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    trained(tmp_path / "runs" / "plain", *SETTINGS, f"data.root={root}", "data.workers=1", "data.classes=10")
    for ranks in (1, 2):
        code, output = train(tmp_path, root, f"staged-{ranks}", ranks, f"data.stage={stage}")
        assert code == 0, output
        assert output.count("data.stage: 2 of 2 shards (") == 1
        assert bits(tmp_path, f"staged-{ranks}") == bits(tmp_path, "plain")
        assert [*stage.iterdir()] == []


@pytest.mark.parametrize(
    ("action", "code"), [("kill9", 69), pytest.param("oom", 71, marks=pytest.mark.slow), ("term", 75)]
)
def test_the_copies_are_removed_however_a_run_ends(root: Path, tmp_path: Path, action: str, code: int) -> None:
    stage = tmp_path / "stage"
    ended, output = train(tmp_path, root, "run", 1, f"data.stage={stage}", fault=f"step:0:3:{action}")
    assert ended == code, output
    assert [*stage.iterdir()] == []


def test_a_training_needs_no_original_once_all_is_copied(root: Path, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    settings = (*SETTINGS, f"data.root={root}", f"data.stage={stage}", "data.workers=0", "train.reproducible=fast")
    with built(tmp_path / "run", *settings) as trainer:
        wait_until(lambda: len([*stage.glob("*/*.tar")]) == len(NAMES), "copies")
        for name in NAMES:
            (root / name).unlink()
        trainer.fit()
        assert trainer.state.step == STEPS
        assert trainer.state.result is not None


def test_images_that_are_decoded_into_memory_are_not_copied(root: Path, tmp_path: Path) -> None:
    settings = (*SETTINGS, f"data.root={root}", f"data.stage={tmp_path / 'stage'}", "data.loader=memory")
    with built(tmp_path / "run", *settings) as trainer:
        assert any("data.stage does nothing here" in note for note in trainer.notes)
        (folder,) = (tmp_path / "stage").iterdir()
        assert copied(folder) == [staging.LOCK_FILE]
