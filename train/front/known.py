"""What is known of the data before it is read: keys that go together, files that are there, counts. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.data import arrayfiles, mixture
from train.fetching import archives
from train.settings import names
from train.settings.batches import held_out
from train.settings.config import Data


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published data set: its training images, and its classes."""

    training: int
    classes: int


PUBLISHED: Final = {
    "cifar10": Published(training=50_000, classes=10),
    "cifar100": Published(training=50_000, classes=100),
    "mnist": Published(training=60_000, classes=10),
    "fashion_mnist": Published(training=60_000, classes=10),
}


def refuse(data: Data) -> None:
    """Refuse keys that belong to another kind of data, and numbers that cannot be.

    Raises:
        Failure: USAGE.
    """
    if data.name != names.SYNTHETIC:
        _refuse_for_others("data.imbalance", data.imbalance, Data().imbalance, data)
        _refuse_for_others("data.frames", data.frames, Data().frames, data)
    elif data.imbalance != 1:
        for side in _sides(data):
            mixture.counts(side, data.classes, data.imbalance)
    if data.name in PUBLISHED and data.classes not in (Data().classes, PUBLISHED[data.name].classes):
        raise _unfit(data, f"data.classes: {data.classes}", "leave data.classes out: it is what was published")


def samples(data: Data) -> int | None:
    """How many are trained on, of any kind but folders; None where only the start of a run can tell.

    Raises:
        Failure: NO_INPUT for files that are not there, DATA for broken ones.
    """
    if data.name == names.SYNTHETIC:
        return _sides(data)[0]
    if data.name in PUBLISHED:
        if not data.download:
            archives.refuse_missing(data)
        return PUBLISHED[data.name].training
    return facts(data).get("training")


def facts(data: Data) -> dict[str, int]:
    """Of arrays what a run that goes on compares with what it began with, as far as their headers tell: both sides.

    Raises:
        Failure: as `samples`.
    """
    if data.name not in names.ARRAYS or (seen := arrayfiles.look(Path(data.root), data.name)) is None:
        return {}
    found = seen.shape[0] if seen.shape else 0
    if not seen.held_out:
        apart = held_out(found, data.val_fraction)
        return {"training": found - apart, "held_out": apart}
    return {"training": found} | ({} if seen.beside is None else {"held_out": seen.beside})


def row(data: Data) -> str:
    """The data in words, for `train check`."""
    if data.name == names.SYNTHETIC:
        tail = f", the rarest {data.imbalance:g} times rarer than the commonest" if data.imbalance != 1 else ""
        clips = f"clips of {data.frames} frames, " if data.frames else ""
        return f"synthetic ({data.samples:,} samples, {data.classes} classes{tail}), {clips}{data.image_size} pixels"
    if data.name in names.ARRAYS:
        seen = arrayfiles.look(Path(data.root), data.name)
        shape = f"images {list(seen.shape)}" if seen else "its arrays are known at the start"
        return f"{data.name} ({data.root}), {shape}"
    if names.is_factory(data.name):
        return f"{data.name} (your own: known at the start)"
    if data.name in PUBLISHED and data.download and not archives.seem_there(data.name, Path(data.root)):
        return f"{data.name} (not yet in {data.root}: fetched at the start), {data.image_size} pixels"
    return f"{data.name} ({data.root}), {data.image_size} pixels"


def _sides(data: Data) -> tuple[int, int]:
    """Training and held-out samples of the embedded data."""
    count = held_out(data.samples, data.val_fraction)
    return data.samples - count, count


def _refuse_for_others(key: str, value: object, default: object, data: Data) -> None:
    if value != default:
        raise _unfit(data, f"{key}: {value}", f"leave {key} out, or set data.name to {names.SYNTHETIC}")


def _unfit(data: Data, found: str, fix: str) -> Failure:
    what = f"{found.partition(':')[0]} does not go with data.name: {data.name}"
    return Failure(what, found=found, fix=fix, code=ExitCode.USAGE)
