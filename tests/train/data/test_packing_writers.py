"""Several processes may pack or index one folder: all images arrive, or a refusal names the other process."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import TIMEOUT_S, alive, wait_until
from tars import numbered, png, write_tar

from entrypoint import Failure, file_writer
from train import file_lock, files
from train.config.schema import DataConfig
from train.data.shards import index as shard_index
from train.data.shards import packing

IMAGES = 240
PACK = """
import os, sys
from dataclasses import replace
from pathlib import Path
from entrypoint import Failure
from train.config.schema import DataConfig
from train.data.shards import packing
data = replace(DataConfig(), name="folder", root=sys.argv[1], image_size=16, val_fraction=0.0)
try:
    index = packing.pack_images(data, Path(sys.argv[2]), scaling=None, say=print, shard_bytes=2000)
except Failure as failure:
    print(failure, file=sys.stderr)
    sys.exit(int(failure.code))
print("images", len(index.entries))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(IMAGES):
        path = folder / f"class-{number % 2}" / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(number % 250, side=16))
    return folder


@pytest.fixture
def start(photos: Path, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts `train data pack` of the photos into one folder, in a session of its own."""
    started: list[subprocess.Popen[str]] = []

    def pack() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PACK, str(photos), str(tmp_path / "out")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, start_new_session=True, **pipes))  # type: ignore[call-overload]
        return started[-1]

    yield pack
    for process in started:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out + err


def has_shards(folder: Path, number: int) -> Callable[[], bool]:
    return lambda: len(list(folder.glob("train-*.tar"))) >= number


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_second_pack_into_the_folder_names_the_first(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    first = start()
    wait_until(has_shards(tmp_path / "out", 1), "the first has begun")
    os.kill(first.pid, signal.SIGSTOP)
    code, text = ended(start())
    os.kill(first.pid, signal.SIGCONT)
    assert (code, f"process {first.pid} on " in text) == (73, True), text
    assert ended(first)[1].endswith(f"images {IMAGES}\n")


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_two_packs_of_which_one_is_killed_lose_no_image(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path, killed: int, seed: int
) -> None:
    pair = [start(), start()]
    shards = random.Random(2 * seed + killed).randrange(1, 6)
    wait_until(lambda: has_shards(tmp_path / "out", shards)() or pair[killed].poll() is not None, "a pack has begun")
    os.kill(pair[killed].pid, signal.SIGKILL)
    code, text = ended(pair[1 - killed])
    complete = code == 0 and text.endswith(f"images {IMAGES}\n")
    assert complete or (code == 73 and re.search(r"process \d+ on ", text)), text
    code, text = ended(start())
    assert (code, text.rpartition("\n")[0].rpartition("\n")[2]) == (0, f"images {IMAGES}"), text
    assert hidden(tmp_path / "out") == []


def test_a_killed_pack_leaves_no_process(start: Callable[[], subprocess.Popen[str]], tmp_path: Path) -> None:
    pack = start()
    wait_until(has_shards(tmp_path / "out", 1), "it has begun")
    children = [int(pid) for pid in Path(f"/proc/{pack.pid}/task/{pack.pid}/children").read_text().split()]
    pack.kill()
    wait_until(lambda: not any(map(alive, children)), "its processes have ended")


def test_a_shard_with_fewer_images_than_were_packed_is_named(photos: Path, tmp_path: Path) -> None:
    data = DataConfig(name="folder", root=str(photos), image_size=16, val_fraction=0.0)

    def pack() -> int:
        index = packing.pack_images(data, tmp_path / "out", scaling=None, say=lambda _: None, shard_bytes=100_000)
        return len(index.entries)

    assert pack() == IMAGES
    write_tar(tmp_path / "out" / "train-00000.tar", numbered(0, 3))
    with pytest.raises(Failure, match="does not hold the images") as caught:
        pack()
    assert (caught.value.code, "train-00000.tar: 3 of" in str(caught.value.found)) == (65, True)


def test_the_probe_of_another_pack_that_begins_is_no_foreign_file(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    file_writer.temporary_path(tmp_path / "out" / files.PROBE_NAME).write_bytes(b"\n")
    data = DataConfig(name="folder", root=str(photos), val_fraction=0.0)
    assert len(packing.pack_images(data, tmp_path / "out", scaling=None, say=lambda _: None).entries) == IMAGES


def test_an_image_of_another_ending_is_packed_too(photos: Path, tmp_path: Path) -> None:
    rows = [f"{path},{path.parent.name}" for path in sorted(photos.rglob("*.png"))[::12]]
    (tmp_path / "odd.picture").write_bytes(png(7, side=16))
    rows.append(f"{tmp_path / 'odd.picture'},class-0")
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]))
    data = DataConfig(name="table", root=str(tmp_path / "t.csv"), image_size=16, val_fraction=0.0)
    assert len(packing.pack_images(data, tmp_path / "out", scaling=None, say=lambda _: None).entries) == len(rows)


@pytest.mark.parametrize("link_target", ["file", "nothing"])
def test_an_index_is_written_through_no_link(tmp_path: Path, link_target: str) -> None:
    """The links have all names that a writer with fixed temporary names could use."""
    folder, other = tmp_path / "data", tmp_path / "other"
    write_tar(folder / "a.tar", numbered(0, 20))
    if link_target == "file":
        other.write_text("another user's")
    for name in shard_index.INDEX_FILES:
        for link in (f"{name}.part", f"{name}.tmp", f".{name}.{os.getpid()}", f".tmp-{name}"):
            (folder / link).symlink_to(other)
    assert len(shard_index.write_index(folder, processes=1).entries) == 20
    assert (other.read_text() if other.exists() else None) == ("another user's" if link_target == "file" else None)


@pytest.mark.parametrize("name", shard_index.INDEX_FILES)
def test_an_index_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / "data" / "a.tar", numbered(0, 20))
    (tmp_path / "other").write_text("another user's")
    (tmp_path / "data" / name).symlink_to(tmp_path / "other")
    with pytest.raises(Failure, match=name) as caught:
        shard_index.write_index(tmp_path / "data", processes=1)
    assert (caught.value.code, (tmp_path / "other").read_text()) == (73, "another user's")


def test_an_index_names_the_process_that_packs_there(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", numbered(0, 20))
    lock = file_lock.acquire_lock(tmp_path / shard_index.LOCK_NAME)
    assert lock is not None
    with lock.held(), pytest.raises(Failure, match="another process writes") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert (caught.value.code, caught.value.found and f"process {os.getpid()}" in caught.value.found) == (73, True)


def test_what_a_killed_indexer_left_is_removed_and_other_files_stay(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", numbered(0, 20))
    left = file_writer.temporary_path(tmp_path / shard_index.ENTRIES_FILE)
    others = [".tmp-mine", ".tmp-index.npy", ".tmp-photos-0123456789abcdef"]
    for name in (left.name, *others):
        (tmp_path / name).write_text("half")
    shard_index.write_index(tmp_path, processes=1)
    assert sorted(hidden(tmp_path)) == sorted(others)
