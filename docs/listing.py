"""Measures how long ranks on one machine take to list a folder of images, and how much memory the list needs.

python docs/listing.py [RANKS]
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[1]))

from train.config.schema import DataConfig
from train.data import image_folder, registry
from train.distributed.shared_memory import HostRanks

CLASSES: Final = 1000
IMAGES_PER_CLASS: Final = 200


def write_folder(root: Path, classes: int, images: int) -> None:
    """Empty files with names as in ImageNet."""
    for label in range(classes):
        folder = root / f"n{label:08d}"
        folder.mkdir(parents=True)
        for number in range(images):
            (folder / f"n{label:08d}_{number:05d}.JPEG").touch()


def read_memory() -> float:
    """This process's memory in MB, without files; memory that n processes share counts 1/n."""
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()]
    return sum(int(line[1]) for line in lines if line[0] in ("Pss_Anon:", "Pss_Shmem:")) * 1024 / 1e6


def all_gather(value: Any) -> list[Any]:
    """Every rank's value."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def measure(rank: int, ranks: int, root: Path, title: str) -> None:
    """Open the folder as one of the ranks; the first prints the results of all."""
    dist.init_process_group("gloo", init_method=f"file://{root}/{title}-{ranks}", rank=rank, world_size=ranks)
    host = HostRanks(rank=rank, world_size=ranks, all_gather=all_gather)
    registry.open_splits(DataConfig(name="folder", root=str(root / "few")), host)  # loads the modules
    gc.collect()
    all_gather(None)
    before, start = read_memory(), time.perf_counter()
    splits = registry.open_splits(DataConfig(name="folder", root=str(root / "many")), host, root / "cache")
    seconds = time.perf_counter() - start
    gc.collect()
    all_gather(None)  # all hold the list
    results = all_gather((seconds, read_memory() - before))
    if rank == 0:
        for number, (seconds, megabytes) in enumerate(results):
            print(f"{title}, rank {number} of {ranks}: {seconds:.2f} s, {megabytes:.1f} MB")
    del splits
    dist.destroy_process_group()


def main() -> None:
    """Without a listing in the cache, then with it."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_folder(root / "few", 2, 2)
        write_folder(root / "many", CLASSES, IMAGES_PER_CLASS)
        time.sleep(image_folder.MIN_AGE_S)  # the listing of a folder that has just changed is not kept
        for title in ("listed", "from the cache"):
            mp.spawn(measure, (ranks, root, title.replace(" ", "-")), nprocs=ranks)


if __name__ == "__main__":
    main()
