"""From looks at all samples to what is said of them: as text, as JSON, and as a failure where training would suffer."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.data.depth import WHITE
from train.inspection.inspection import Look

SHOWN: Final = 10
Pair = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class Side:
    """What one side holds. name_of and label_of: of a sample; least: data.image_size. highest: value of all images of
    16 bits.

    twice: (sample, the earlier one with the same pixels), leaked: (sample, the same image on the other side).
    """

    name_of: Callable[[int], str]
    label_of: Callable[[int], int]
    least: int
    samples: int = 0
    seconds: float = 0.0
    sizes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    highest: int | None = None
    small: list[int] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)
    first: dict[bytes, int] = field(default_factory=dict)
    twice: list[Pair] = field(default_factory=list)
    leaked: list[Pair] = field(default_factory=list)

    def add(self, look: Look, other: Side | None = None) -> None:
        """Take one more sample in. `other` is the side that was looked at before."""
        self.samples += 1
        if look.broken is not None:
            self.broken.append((look.sample, look.broken))
            return
        self.seconds += look.seconds
        self.sizes[look.size] += 1
        self.modes[look.mode] += 1
        if look.highest is not None:
            self.highest = max(look.highest, self.highest or 0)
        if min(look.size[:2]) < self.least:
            self.small.append(look.sample)
        if self.first.setdefault(look.digest, look.sample) != look.sample:
            self.twice.append((look.sample, self.first[look.digest]))
        if other is not None and look.digest in other.first:
            self.leaked.append((look.sample, other.first[look.digest]))

    @property
    def read(self) -> int:
        """Samples that could be read."""
        return self.samples - len(self.broken)

    def as_json(self, per_class: dict[str, int]) -> dict[str, Any]:
        """All that was found on this side."""
        return {
            "samples": self.samples,
            "per_class": per_class,
            "sizes": _sizes(self.sizes),
            "modes": dict(self.modes.most_common()),
            "highest_of_16_bits": self.highest,
            "seconds_per_sample": self.seconds / self.read if self.read else None,
            "smaller_than_image_size": [self.name_of(sample) for sample in self.small],
            "broken": [{"name": self.name_of(sample), "reason": reason} for sample, reason in self.broken],
            "duplicates": [_pair(self, self, pair) for pair in self.twice],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Both sides. classes: lines on how often each is seen; per_class: training and held out."""

    title: str
    training: Side
    held_out: Side
    classes: list[str]
    per_class: tuple[dict[str, int], dict[str, int]]

    @property
    def failure(self) -> Failure | None:
        """DATA for broken samples and for images on both sides, with the way to mend it."""
        broken, leaked = self._broken(), self._leaked()
        if not broken and not leaked:
            return None
        parts = [f"broken samples ({len(broken):,})"] if broken else []
        parts += [f"held-out images that are trained on too ({len(leaked):,})"] if leaked else []
        fixes = ["replace or delete the broken ones (or allow some: data.max_bad_images)"] if broken else []
        fixes += ["delete one of each pair (or keep groups together: data.group)"] if leaked else []
        found = "; ".join((broken + leaked)[:SHOWN]) + _more(len(broken) + len(leaked))
        return Failure(f"the data has {' and '.join(parts)}", found=found, fix="; ".join(fixes), code=ExitCode.DATA)

    def as_text(self) -> str:
        """For people: one fact per line. Of paths that are not UTF-8 the odd bytes are escaped."""
        rows = [("data", self.title), *self._lines("training", self.training), *self._lines("held out", self.held_out)]
        lines = [f"{name:<14} {value}" for name, value in rows]
        lines[1:1] = self.classes
        for name, found in (("broken", self._broken()), ("leakage", self._leaked())):
            shown = [f"  {one}" for one in found[:SHOWN]]
            lines += [f"{name:<14} {len(found) or 'none'}", *shown]
            lines += [f"  and {len(found) - SHOWN:,} more: see --json"] if len(found) > SHOWN else []
        return "\n".join(lines).encode(errors="backslashreplace").decode()

    def as_json(self) -> str:
        """The same, whole, for programs."""
        sides = zip((self.training, self.held_out), self.per_class, strict=True)
        training, held_out = (side.as_json(counts) for side, counts in sides)
        leaks = [_pair(self.held_out, self.training, pair) for pair in self.held_out.leaked]
        told = {"ok": self.failure is None, "data": self.title, "training": training, "held_out": held_out}
        return json.dumps(told | {"leaks": leaks}, indent=2)

    def _lines(self, name: str, side: Side) -> list[tuple[str, str]]:
        if side.samples == 0:
            return [(name, "no samples")]
        speed = f", {1e3 * side.seconds / side.read:.3g} ms each" if side.read else ""
        share = f"{side.read:,} of " if side.broken else ""
        rows = [(name, f"{share}{side.samples:,} read{speed}")]
        if side.read:
            rows += [
                ("  sizes", _sizes_in_words(side.sizes)),
                ("  pixels", _modes_in_words(side.modes) + _highest(side.highest)),
            ]
        if side.small:
            some = ", ".join(side.name_of(sample) for sample in side.small[:3])
            more = _more(len(side.small), 3)
            rows += [("  small", f"{len(side.small):,} below data.image_size {side.least}, scaled up: {some}{more}")]
        if side.twice:
            some = "; ".join(_in_words(side, side, pair) for pair in side.twice[:3])
            rows += [("  duplicates", f"{len(side.twice):,}: {some}{_more(len(side.twice), 3)}")]
        return rows

    def _broken(self) -> list[str]:
        return [
            reason if reason.startswith(side.name_of(sample)) else f"{side.name_of(sample)}: {reason}"
            for side in (self.training, self.held_out)
            for sample, reason in side.broken
        ]

    def _leaked(self) -> list[str]:
        return [_in_words(self.held_out, self.training, pair) for pair in self.held_out.leaked]


def _pair(side: Side, other: Side, pair: Pair) -> dict[str, Any]:
    same = side.label_of(pair[0]) == other.label_of(pair[1])
    return {"name": side.name_of(pair[0]), "same_as": other.name_of(pair[1]), "same_class": same}


def _in_words(side: Side, other: Side, pair: Pair) -> str:
    told = _pair(side, other, pair)
    return f"{told['name']} = {told['same_as']}" + ("" if told["same_class"] else " (of another class!)")


def _sizes(sizes: Counter[tuple[int, ...]]) -> dict[str, Any] | None:
    if not sizes:
        return None
    ordered = sorted(sizes, key=lambda size: (math.prod(size), size))
    often, times = sizes.most_common(1)[0]
    return {"smallest": ordered[0], "largest": ordered[-1], "most_frequent": often, "of_that_size": times}


def _sizes_in_words(sizes: Counter[tuple[int, ...]]) -> str:
    told = _sizes(sizes) or {}
    if len(sizes) == 1:
        return f"all {_by(told['most_frequent'])}"
    share = told["of_that_size"] / sizes.total()
    often = f"most often {_by(told['most_frequent'])} ({share:.1%})"
    return f"{_by(told['smallest'])} to {_by(told['largest'])}, {often}"


def _by(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def _modes_in_words(modes: Counter[str]) -> str:
    return ", ".join(f"{mode} {count:,}" for mode, count in modes.most_common())


def _highest(value: int | None) -> str:
    return "" if value is None else f", highest value of 16 bits {value:,} of {WHITE:,}"


def _more(number: int, shown: int = SHOWN) -> str:
    return f" and {number - shown:,} more" if number > shown else ""
