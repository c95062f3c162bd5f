"""The rows of a bench: what was measured, with its spread, beside the target that was set for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from entrypoint import Failure
from train.bench.pairs import Estimate

MANY: Final = "reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is asked of a value. limit None: it is reported only. surely: the bound of confidence must hold too.

    where: what it needs: a GPU, or only a CPU.
    """

    what: str
    better: Literal["higher", "lower"] = "higher"
    limit: float | None = None
    unit: str = ""
    surely: bool = False
    where: Literal["cpu", "gpu", "both"] = "both"

    def told(self) -> str:
        """≥ 0.98, ≤ 40 µs."""
        sign = "≥" if self.better == "higher" else "≤"
        return MANY if self.limit is None else f"{sign} {self.limit:g} {self.unit}".rstrip()

    def holds(self, found: Estimate) -> bool | None:
        """Whether it was reached; None where nothing was asked."""
        if self.limit is None:
            return None
        if self.better == "higher":
            return (found.low if self.surely else found.value) >= self.limit
        return (found.high if self.surely else found.value) <= self.limit


# Ratios are ours / the peer's.
TARGETS: Final[Mapping[str, Target]] = {
    "1": Target(what="reference workload, images/s: ours / the published recipe", limit=2.5, where="gpu"),
    "2": Target(what="images/s x 14.47 GFLOP / the device's matrix products", limit=0.50, where="gpu"),
    "3a": Target(what="images/s, 256 a GPU: ours / a bare loop", limit=0.98),
    "3b": Target(what="images/s, 64 a GPU: ours / a bare loop", limit=0.95),
    "4a": Target(what="time of a step over the bare loop's", better="lower", limit=40.0, unit="µs", where="cpu"),
    "4b": Target(what="the same: ours / stock Accelerate's", better="lower", limit=0.25, where="cpu"),
    "5": Target(what="path system calls of a step", better="lower", limit=0.0, where="cpu"),
    "6": Target(what="pause between epochs / a step", better="lower", limit=1.0),
    "7": Target(what="input, images/s of a core: in memory / Pillow in workers", limit=4.0, where="cpu"),
    "8": Target(what="typed to first step: ours / accelerate launch", better="lower", limit=0.5, where="cpu"),
    "9a": Target(what="entrypoint show / python -c pass", better="lower", limit=4.0, where="cpu"),
    "9b": Target(what="entrypoint show / accelerate launch", better="lower", limit=0.05, where="cpu"),
    "10a": Target(what="first step compiled: warm / cold", better="lower", limit=0.15),
    "10b": Target(what="compiled again after the first step", better="lower", limit=0.0),
    "11a": Target(what="extra time for a checkpoint: ours / save_state", better="lower", limit=0.5),
    "11b": Target(what="the snapshot alone / save_state", better="lower", limit=0.15),
    "12": Target(what="size of the image", better="lower", limit=3.5, unit="GB"),
    "13": Target(what="DDP on 2 processes: ours / bare DDP", limit=0.97, surely=True, where="cpu"),
    "14": Target(what="scaling"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured value, or the reason why there is none.

    number: of `TARGETS`, or another name for figures that nothing is asked of. failed: missing because something went
    wrong. facts: what JSON keeps beside it (absolute figures of both sides, settings), numbers and texts only.
    """

    number: str
    target: Target
    found: Estimate | None = None
    missing: str | None = None
    failed: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool | None:
        """Whether the target was reached; None where it was not measured or nothing is asked."""
        return None if self.found is None else self.target.holds(self.found)

    def as_json(self) -> dict[str, Any]:
        """One object of `rows` in bench.json."""
        asked = {"what": self.target.what, "target": self.target.told(), "unit": self.target.unit}
        found = asdict(self.found) if self.found else {"value": None, "missing": self.missing}
        return {"row": self.number, **asked, **found, "holds": self.holds, "facts": dict(self.facts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of a plot and of a table beside it. lines: name -> (x, y) points; dashed: names of lines that were not
    measured (ideal, a limit)."""

    name: str
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    dashed: Sequence[str] = ()
    log_x: bool = False
    log_y: bool = False

    def as_json(self) -> dict[str, Any]:
        """One object of `series` in bench.json."""
        return asdict(self)


Found = Row | Series


def measured(number: str, found: Estimate, **facts: Any) -> Row:
    """A row of the table of targets, with its value."""
    return Row(number=number, target=TARGETS[number], found=found, facts=facts)


def unmeasured(number: str, why: str, **facts: Any) -> Row:
    """A row of the table of targets that could not be measured here."""
    return Row(number=number, target=TARGETS[number], missing=why, facts=facts)


def spoiled(number: str, failure: Failure, what: str = "") -> Row:
    """A row that could have been measured here, had not something gone wrong. what: where it is none of `TARGETS`."""
    said = (failure.found or "").strip().splitlines()
    first_and_last = dict.fromkeys(said[:1] + said[-1:])  # what the bench saw of it, and the end of its log
    target = TARGETS.get(number) or Target(what=what)
    return Row(number=number, target=target, missing="; ".join([failure.what, *first_and_last]), failed=True)


def figure(name: str, what: str, found: Estimate, *, unit: str = "", **facts: Any) -> Row:
    """A value that nothing is asked of."""
    return Row(number=name, target=Target(what=what, unit=unit), found=found, facts=facts)
