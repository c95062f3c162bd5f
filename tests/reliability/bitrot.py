"""Random damage to a real run's checkpoints, one at a time: a start must see each of it.

bitrot.py     N=10000 flips of one bit, uniform over all bytes of all files; SEED=0
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import trials
from processes import python
from trials import Trial

from entrypoint import Failure
from train.checkpoint import store

SETTINGS = (
    *("run.name=run", "data.samples=80", "data.image_size=8", "data.classes=2", "model.args.width=4"),
    *("train.epochs=2", "train.global_batch_size=16", "log.tensorboard=false", "eval.every_epochs=2"),
    *("checkpoint.every_steps=4", "checkpoint.keep=2"),
)


def run_once(place: Path) -> Path:
    """The checkpoints of a tiny run: steps 4 and 8."""
    done = python("-m", "train", "--device", "cpu", *SETTINGS, cwd=place)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return place / "runs" / "run" / "checkpoints"


def detected(folder: Path, damaged: Path) -> bool:
    """Whether a start passes over the damaged checkpoint, or refuses to begin."""
    try:
        found = store.newest_checkpoint(folder)
    except Failure:
        return True
    return found is not None and found.path != damaged and any(damaged.name in note for note in found.notes)


@contextmanager
def restored(*paths: Path) -> Iterator[None]:
    """Whatever the block does to these files, they are as before afterwards."""
    before = {path: path.read_bytes() for path in paths}
    try:
        yield
    finally:
        for path, data in before.items():
            path.write_bytes(data)


def flip(path: Path, bit: int) -> None:
    """Turn one bit of a file around, in place."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def flips(folder: Path, number: int, draw: random.Random) -> Iterator[Trial]:
    """One trial for each file: how many flips it got by chance, and how many were seen; then the whole manifest."""
    newest = max(store.list_checkpoints(folder).values())
    files = sorted(newest.iterdir())
    sizes = [path.stat().st_size for path in files]
    hits = draw.choices(range(len(files)), weights=sizes, k=number)
    for at, path in enumerate(files):
        bits = [draw.randrange(8 * sizes[at]) for _ in range(hits.count(at))]
        yield _told(f"flip a bit of {path.name}", bits, folder, newest, lambda bit, path=path: flip(path, bit), [path])
    manifest = newest / "manifest.json"
    every = range(0, 8 * manifest.stat().st_size, max(1, 10_000 // number))
    yield _told("flip every bit of manifest.json", every, folder, newest, lambda bit: flip(manifest, bit), [manifest])


def other_damage(folder: Path, number: int, draw: random.Random) -> Iterator[Trial]:
    """Files cut short, made longer, emptied, and exchanged with those of the checkpoint before."""
    old, new = store.list_checkpoints(folder).values()
    for path in sorted(new.iterdir()):
        last = path.stat().st_size - 1  # without its last byte, a line end, the manifest still says all it said
        sizes = [0, *(draw.randrange(last) for _ in range(number))]
        yield _told(f"cut {path.name}", sizes, folder, new, lambda size, path=path: os.truncate(path, size), [path])
        longer = [path.stat().st_size + 1 + draw.randrange(4096) for _ in range(number)]
        if path.suffix != ".json":  # spaces behind JSON say the same; zeros do not
            yield _told(
                f"zeros behind {path.name}", longer, folder, new, lambda n, path=path: os.truncate(path, n), [path]
            )
        other = (old / path.name).read_bytes()
        yield _told(
            f"{path.name} of the step before", [0], folder, new, lambda _, p=path, d=other: p.write_bytes(d), [path]
        )


def _told(
    what: str, places: Iterable[int], folder: Path, newest: Path, damage: Callable[[int], object], files: list[Path]
) -> Trial:
    tried, missed = 0, list[int]()
    for place in places:
        tried += 1
        with restored(*files):
            damage(place)
            if not detected(folder, newest):
                missed.append(place)
    return Trial(
        row=what,
        injector="byte edit",
        process="the next start",
        expected=tried,
        observed=tried - len(missed),
        ok=not missed,
        lines=[f"not seen: {missed[:10]}"] if missed else [],
    )


def run(number: int, seed: int) -> Iterator[Trial]:
    """So many flips, and a hundredth as many of each other kind of damage."""
    place, draw = Path(tempfile.mkdtemp(prefix="bitrot-")), random.Random(seed)
    try:
        folder = run_once(place)
        yield from flips(folder, number, draw)
        yield from other_damage(folder, number // 100, draw)
        if store.newest_checkpoint(folder) is None or detected(folder, max(store.list_checkpoints(folder).values())):
            raise RuntimeError("what was restored is not as before: the figures mean nothing")
    finally:
        shutil.rmtree(place)


def main() -> int:
    """`make bitrot`."""
    number, seed = int(os.environ.get("N") or 10_000), int(os.environ.get("SEED") or 0)
    return trials.run("bitrot", run(number, seed), n=number, seed=seed)


if __name__ == "__main__":
    sys.exit(main())
