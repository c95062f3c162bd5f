"""What one `train bench` was asked for, as every part of it gets it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from entrypoint import ExitCode, Failure
from entrypoint import LaunchOptions as Launch

# Beside the package in a checkout; in the image where its examples lie.
PEERS: Final = (Path(__file__).parents[2] / "bench" / "peers", Path("/opt/train-image/bench/peers"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One start of `train bench`.

    first: whether this task has world rank 0, which alone prints and keeps what is found. pairs: None: as many as the
    row asks for. quick: the smallest sizes, to see that it works: the values mean nothing. launch: processes as asked
    for. scratch: an empty folder that is removed afterwards. peers: the scripts to be compared with, if they are there.
    tell: takes one line of progress. own: the arguments that this bench alone knows.
    """

    device: Literal["cpu", "cuda"]
    launch: Launch
    scratch: Path
    peers: Path | None
    environ: Mapping[str, str]
    tell: Callable[[str], None]
    first: bool = True
    pairs: int | None = None
    quick: bool = False
    config: str | None = None
    overrides: tuple[str, ...] = ()
    own: argparse.Namespace = field(default_factory=argparse.Namespace)

    def count(self, asked: int = 5) -> int:
        """How many pairs: `--pairs`, else 2 when it is only to be seen working, else as many as the row asks for."""
        return self.pairs or (2 if self.quick else asked)

    def variables(self, **more: str) -> dict[str, str]:
        """The environment for a process that is measured. Coverage would be measured with it."""
        kept = {name: value for name, value in self.environ.items() if not name.startswith("COVERAGE_")}
        return kept | {"PYTHONPATH": _with(str(Path(__file__).parents[2]), kept.get("PYTHONPATH"))} | more

    def peer(self, name: str) -> list[str]:
        """The beginning of a command line: python PEERS/NAME.py.

        Raises:
            Failure: NO_INPUT, where there are none.
        """
        if self.peers is None:
            raise _no_peers(PEERS)
        return [sys.executable, str(self.peers / f"{name}.py")]


def numbers(text: str) -> list[int]:
    """An argument `1,2,4`: rising, each at least 1. Raises ValueError."""
    found = sorted({int(word) for word in text.split(",")})
    if found[0] < 1:
        raise ValueError
    return found


def find_peers(given: str | None) -> Path | None:
    """The folder of the scripts that we are compared with; None where the packages are installed without them.

    Raises:
        Failure: NO_INPUT, where there is no folder `given`.
    """
    places = (Path(given),) if given else PEERS
    found = next((place.absolute() for place in places if place.is_dir()), None)
    if given and found is None:
        raise _no_peers(places)
    return found


def _no_peers(places: Sequence[Path]) -> Failure:
    return Failure(
        "the scripts to be compared with are not there",
        found=f"no folder {' or '.join(map(str, places))}",
        fix="give their folder: train bench NAME --peers DIR (bench/peers of the project)",
        code=ExitCode.NO_INPUT,
    )


def _with(place: str, path: str | None) -> str:
    return f"{place}{os.pathsep}{path}" if path else place


Json = dict[str, Any]
