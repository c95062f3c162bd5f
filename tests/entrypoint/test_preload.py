"""What is mapped from an image that may vanish is in memory; elsewhere nothing is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint import preload

MAPS = """\
55d0a0000000-55d0a0002000 r--p 00000000 08:01 11 /usr/bin/python3.13
55d0a0002000-55d0a0005000 r-xp 00002000 08:01 11 /usr/bin/python3.13
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 [heap]
7f0000001000-7f0000003000 r--s 00000000 08:01 12 /a/shared file
7f0000003000-7f0000004000 ---p 00000000 08:01 13 /lib/guard.so
7f0000004000-7f0000008000 r-xp 00000000 08:01 14 /site/nvidia/cu13/lib/libcublas.so
7f0000008000-7f0000009000 rw-p 00000000 00:00 0
7f0000009000-7f000000a000 r--p 00000000 08:01 15 /lib/with a space.so
"""
MOUNTS = "/dev/root / {} ro,noatime 0 0\nproc /proc proc rw 0 0\n"


def machine(root: Path, fs_type: str, maps: str = MAPS) -> Path:
    """A folder with the files of /proc that tell of a file system at / of this type."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/maps").write_text(maps)
    (root / "proc/self/mounts").write_text(MOUNTS.format(fs_type))
    return root


def preloaded(folder: Path, filesystem: str, engine: str = "apptainer") -> tuple[int, list[tuple[int, int]]]:
    asked: list[tuple[int, int]] = []
    size = preload.preload_mapped_files(
        machine(folder, filesystem), lambda start, size: asked.append((start, size)) is None, engine
    )
    return size, asked


@pytest.mark.parametrize("filesystem", ["fuse.squashfuse_ll", "fuse", "overlay"])
def test_every_private_file_is_read_but_for_the_kernels_of_gpus(tmp_path: Path, filesystem: str) -> None:
    size, asked = preloaded(tmp_path, filesystem)
    assert [start for start, _ in asked] == [0x55D0A0000000, 0x55D0A0002000, 0x7F0000009000]
    assert size == sum(size for _, size in asked) == 6 * 4096


@pytest.mark.parametrize(
    ("filesystem", "engine"), [("ext4", "none"), ("squashfs", "apptainer"), ("overlay", "docker"), ("overlay", "none")]
)
def test_on_another_root_nothing_is_done(tmp_path: Path, filesystem: str, engine: str) -> None:
    assert preloaded(tmp_path, filesystem, engine) == (0, [])


def test_where_nothing_can_be_read_nothing_is_done(tmp_path: Path) -> None:
    assert preload.preload_mapped_files(tmp_path) == 0


REAL = """
import pathlib, sys
from entrypoint import preload
root = pathlib.Path(sys.argv[1])
(root / "proc/self/maps").write_text(pathlib.Path("/proc/self/maps").read_text())
resident_kb = lambda: int(next(l.split()[1] for l in open("/proc/self/status") if l.startswith("RssFile")))
before = resident_kb()
size = preload.preload_mapped_files(root)
print(size, resident_kb() - before)
"""


def test_the_kernel_reads_what_it_is_asked_to(tmp_path: Path) -> None:
    machine(tmp_path, "fuse")
    done = subprocess.run([sys.executable, "-c", REAL, str(tmp_path)], capture_output=True, text=True, timeout=60)
    size, more = map(int, done.stdout.split())
    assert size > 1_000_000
    assert more > 0
