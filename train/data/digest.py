"""From both sides of the data to what tells them from others: to other ranks, and to the next start of the run."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import torch

from entrypoint import ExitCode, Failure
from train.data import paths
from train.data.folder import Files
from train.data.paths import Paths
from train.data.sets import Sets, Source
from train.data.stored import Stored
from train.settings import names

SIDES: Final = {"training": "training samples", "held_out": "held-out samples"}
OTHERS: Final = ": others, or in another order"
LOOKED: Final = 64  # samples of an array
SHOWN: Final = 4  # ranks
FIXES: Final = {
    True: "let it give every process the same: sort what os.listdir, glob and set() give, and draw from a generator "
    "with a seed, as numpy.random.default_rng(0)",
    False: "give all nodes the same files: put data.root where all of them see it, or copy it anew to each",
}


def facts(sets: Sets, root: str) -> dict[str, Any]:
    """Classes, how many samples each side has, and their digests; as checkpoints keep them.

    A digest is of the labels and, of files, the paths below their folder (root, in a list of the user's own), in their
    order. So the folder may move. Of arrays it is of a few samples too. It is not of what all samples hold: to read
    them takes as long as an epoch. `all`: however files are divided into sides.
    """
    training, held_out = sets.training, sets.held_out
    digests = {"training": _side(training, root), "held_out": _side(held_out, root)}
    if isinstance(training, Files) and isinstance(held_out, Files) and (every := _undivided(training, held_out)):
        digests["all"] = _hashed(every.pieces())
    sizes = {"training": len(training.labels), "held_out": len(held_out.labels)}
    return {"classes": list(sets.classes), **sizes, "digests": digests}


def refuse_others(mine: Mapping[str, Any], name: str, gathered: Callable[[Any], list[Any]]) -> None:
    """Compare all ranks' data: each trains on what its own list calls by a number. To be called by all ranks.

    Args:
        mine: this rank's `facts`. name: data.name. gathered: gives every rank's value, in the order of the ranks.

    Raises:
        Failure: DATA, naming the ranks that differ from rank 0, and in what.
    """
    called = _hashed(repr(one).encode() for one in mine["classes"])
    told = {"classes": (len(mine["classes"]), called)}
    told |= {word: (mine[side], mine["digests"][side]) for side, word in SIDES.items()}
    every = gathered((socket.gethostname(), told))
    for word, first in every[0][1].items():
        if others := [rank for rank, (_, one) in enumerate(every) if one[word] != first]:
            counts = [f"{every[rank][1][word][0]:,} on rank {rank} ({every[rank][0]})" for rank in (0, *others)]
            alike = all(every[rank][1][word][0] == first[0] for rank in others)
            raise _refused(name, f"{word}: {_some(counts)}{OTHERS if alike else ''}")


def _refused(name: str, found: str) -> Failure:
    return Failure(
        "the ranks see different data",
        found=found,
        expected="the same classes and the same samples in the same order on all ranks",
        fix=FIXES[names.is_factory(name)],
        code=ExitCode.DATA,
    )


def _some(ranks: list[str]) -> str:
    return ", ".join(ranks[:SHOWN]) + (f" and {len(ranks) - SHOWN:,} more ranks" if len(ranks) > SHOWN else "")


def _side(side: Source, root: str) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(side.labels.numpy(), "<i8").data)
    if isinstance(side, Files):
        for piece in _below(side, root).pieces():
            digest.update(piece)
    if isinstance(side, Stored) and len(side.rows):
        few = side.rows[torch.linspace(0, len(side.rows) - 1, LOOKED).long()]
        digest.update(side.pixels[few].contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def _below(side: Files, root: str) -> Paths:
    if isinstance(side.paths, Paths):
        return side.paths
    return paths.of(str(path).removeprefix(root) for path in side.paths)


def _undivided(training: Files, held_out: Files) -> Paths | None:
    """The list of which both are parts, in its order; None where each has one of its own."""
    if not (isinstance(training.paths, Paths) and isinstance(held_out.paths, Paths)):
        return None
    if training.paths.letters is not held_out.paths.letters:
        return None
    every = paths.joined(training.paths, held_out.paths)
    return every.part(np.argsort(every.starts))


def _hashed(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()[:32]
