"""From the times of a training's stages to which of them limits it, and what to change."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

MUCH: Final = 0.2  # of the time, from which on something is worth a word
MB: Final = 1e6
UNSTEADY: Final = 1.5  # times as long as the shortest tenth: from which on the longest tenth is worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Seconds that one batch of `batch` images took, each time: reading and augmenting one, copying it, one step."""

    batch: int
    seconds: Sequence[float]

    @property
    def images_per_s(self) -> float:
        """By the median."""
        return self.batch / self.at(0.5)

    def at(self, share: float) -> float:
        """The quantile of the seconds."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    def as_json(self) -> dict[str, float]:
        """Rates, and milliseconds of a batch with their spread."""
        told = {"images_per_s": self.images_per_s, "ms_per_batch": 1e3 * self.at(0.5)}
        return told | {
            "ms_10_percent": 1e3 * self.at(0.1),
            "ms_90_percent": 1e3 * self.at(0.9),
            "times": len(self.seconds),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """read: on one processor. copy: to the GPU; None on the CPU, and where all images lie on the GPU.

    workers: None where all is read at the start. images, bytes_: of the whole data set. cores: that one rank may use.
    cacheable: whether data.cache could help. quicker: settings that may shorten a step. notes: what was timed otherwise
    than a training does it.
    """

    title: str
    device: str
    cores: int
    workers: int | None
    read: Stage
    augment: Stage
    copy: Stage | None
    step: Stage
    images: int
    bytes_: int
    fits: bool
    cacheable: bool
    quicker: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def taken(self) -> float:
        """Images/s that the device can take: it augments, then it steps."""
        return 1 / (1 / self.augment.images_per_s + 1 / self.step.images_per_s)

    @property
    def given(self) -> float:
        """Images/s that come to it."""
        sent = self.copy.images_per_s if self.copy else math.inf
        if self.workers is None:
            return sent
        return min(sent, self.read.images_per_s * min(max(1, self.workers), self.cores))

    @property
    def images_per_s(self) -> float:
        """What a rank can be expected to train. Workers and copies work beside the step; 0 workers do not."""
        if self.workers == 0:
            return 1 / (1 / self.given + 1 / self.taken)
        return min(self.given, self.taken)

    @property
    def limit(self) -> str:
        """The stage that all others wait for."""
        stages = {"augment": self.augment.images_per_s, "step": self.step.images_per_s}
        if self.copy is not None:
            stages["copy"] = self.copy.images_per_s
        slowest = min(stages, key=stages.__getitem__)
        waits = self.given < (stages["step"] if self.workers == 0 else self.taken)
        return "read" if waits and self.given < stages.get("copy", math.inf) else slowest

    def advice(self) -> Iterator[str]:
        """What to change, the most helpful first."""
        if self.limit == "read":
            yield from self._read_faster()
        elif self.workers is None:
            yield "nothing about how data is read: all of it is read at the start"
        else:
            ratio = self.given / self.taken
            yield f"nothing about how data is read: it comes {ratio:.1f} times as fast as the step takes it"
            if self.workers > (enough := self._needed) and ratio > 2:
                yield f"data.workers={enough} would do, which leaves processors to others"
        if self.limit == "step" and self.quicker:
            yield f"the step is the limit: what may shorten it is {', '.join(self.quicker)}"
        if self.limit == "copy":
            yield "copying is the limit: a smaller data.image_size, or data.loader=memory where the images fit"
        share = self.taken / self.augment.images_per_s
        if share > MUCH:
            yield f"augmenting takes {share:.0%} of the device's time: data.augment=none shows what it costs"

    @property
    def _needed(self) -> int:
        return math.ceil(self.taken / self.read.images_per_s)

    def _read_faster(self) -> Iterator[str]:
        one, size = self.read.images_per_s, f"{self.bytes_ / MB:,.0f} MB"
        if self.fits:
            once = self.images / (one * self.cores)
            yield f"data.loader=memory: {self.images:,} images, {size}, read once in about {once:.0f} s"
        elif self.cacheable:
            yield f"data.cache=FOLDER: each image is decoded once, for all epochs and starts ({size} there)"
        if self.workers is not None and self.workers < self._needed < self.cores:
            yield f"data.workers={self._needed}: they read {self._needed * one:,.0f} images/s"
        elif self._needed >= self.cores:
            yield f"more processors for a rank: {self._needed + 1} instead of {self.cores}"

    @property
    def stages(self) -> dict[str, Stage]:
        """Those that were timed."""
        stages = {"read": self.read, "augment": self.augment, "copy": self.copy, "step": self.step}
        return {name: stage for name, stage in stages.items() if stage is not None}

    def told(self) -> Iterator[str]:
        """What was timed otherwise than in a training, and which times were too unlike to rely on."""
        yield from self.notes
        for name, stage in self.stages.items():
            low, high = stage.at(0.1), stage.at(0.9)
            if high > UNSTEADY * low:
                yield f"{name} was unsteady: {1e3 * low:,.2f} to {1e3 * high:,.2f} ms a batch (10 to 90 % of the times)"

    def as_json(self) -> str:
        """One object."""
        facts: dict[str, Any] = {
            "data": self.title,
            "device": self.device,
            "cores": self.cores,
            "workers": self.workers,
            "images": self.images,
            "bytes": self.bytes_,
            "stages": {name: stage.as_json() for name, stage in self.stages.items()},
            "limit": self.limit,
            "images_per_s": self.images_per_s,
            "advice": list(self.advice()),
            "notes": list(self.told()),
        }
        return json.dumps(facts)

    def as_text(self) -> str:
        """A table, the limit, and what to change."""
        whole = " (all at the start)" if self.workers is None else f", {self.workers} worker{'s' * (self.workers != 1)}"
        where = {"read": f"one processor of {self.cores}{whole}", "copy": "to the GPU, beside the step"}
        lines = [f"{self.title}, on {self.device}", f"{'stage':<10}{'images/s':>12}{'ms a batch':>13}   on"]
        for name, stage in self.stages.items():
            told = f"{stage.images_per_s:>12,.0f}{1e3 * stage.at(0.5):>13,.2f}"
            lines.append(f"{name:<10}{told}   {where.get(name, self.device)}")
        lines.append(f"limit: {self.limit}; a rank trains about {self.images_per_s:,.0f} images/s")
        return "\n".join(
            [*lines, *(f"change: {line}" for line in self.advice()), *(f"note: {line}" for line in self.told())]
        )
