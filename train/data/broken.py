"""From a source in which some images are broken to samples without them: the same ones, whoever reads them when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from entrypoint import ExitCode, Failure

Samples = npt.NDArray[np.int64]
Reader = Callable[[Samples], Tensor]
SHOWN: Final = 10


class Tolerant:
    """Reads samples of one side. A broken image is one whose read fails with DATA; any other failure ends the run.

    In training the next readable sample by number takes a broken one's place, with its own label and moved as the
    broken one would have been: the batch keeps its size, and nothing depends on who found out first. In evaluation
    a broken image is left out.
    """

    def __init__(self, read: Reader, count: int, *, most: int, replace: bool) -> None:
        self._read, self._count, self._most, self._replace = read, count, most, replace
        self.bad: dict[int, str] = {}

    def read(self, samples: Samples) -> tuple[Tensor | None, Samples, dict[int, str]]:
        """(pixels, the samples they are of, path and reason of each newly found broken one); None for no pixels.

        Raises:
            Failure: DATA, where more than `most` are broken. With `most` 0 the first one's own.
        """
        before = set(self.bad)
        while True:
            taken = self.instead(samples)
            if len(taken) == 0:
                return None, taken, self._new(before)
            try:
                return self._read(taken), taken, self._new(before)
            except Failure as failure:
                self._look_at_each(taken, failure)

    def instead(self, samples: Samples) -> Samples:
        """Those that are read for these samples, as far as the broken ones are known."""
        if not self._replace:
            return samples[[int(sample) not in self.bad for sample in samples]]
        return np.array([self._next(int(sample)) for sample in samples], np.int64)

    def _next(self, sample: int) -> int:
        while sample in self.bad:
            sample = (sample + 1) % self._count
        return sample

    def _look_at_each(self, samples: Samples, failure: Failure) -> None:
        """Find out which ones the failure meant."""
        if self._most == 0 or failure.code != ExitCode.DATA:
            raise failure
        found = {sample: text for sample in np.unique(samples) if (text := self._reason(sample))}
        if not found:
            raise failure
        self.bad.update({int(sample): text for sample, text in found.items()})
        if len(self.bad) > self._most:
            raise too_many(self.bad.values(), self._most)
        if len(self.bad) == self._count:
            raise too_many(self.bad.values(), self._count - 1)

    def _reason(self, sample: np.int64) -> str | None:
        try:
            self._read(np.array([sample]))
        except Failure as failure:
            if failure.code != ExitCode.DATA:
                raise
            return failure.found or failure.what
        return None

    def _new(self, before: set[int]) -> dict[int, str]:
        return {sample: text for sample, text in self.bad.items() if sample not in before}


class Ledger:
    """The broken images that this rank has met, on both sides: each said once, and all of them counted."""

    def __init__(self, most: int, say: Callable[[str], None]) -> None:
        self._most, self._say = most, say
        self.known: dict[tuple[str, int], str] = {}

    def __iter__(self) -> Iterator[str]:
        """Path and reason of each."""
        return iter(self.known.values())

    @property
    def told(self) -> str | None:
        """How many were skipped, for the end of a run; None where all could be read."""
        images = "1 broken image" if len(self.known) == 1 else f"{len(self.known):,} broken images"
        return f"{images} skipped (data.max_bad_images: {self._most})" if self.known else None

    def add(self, side: str, bad: Mapping[int, str]) -> None:
        """Count what was found on a side, by sample.

        Raises:
            Failure: DATA, where there are more than data.max_bad_images.
        """
        self.merge({(side, sample): text for sample, text in bad.items()})

    def merge(self, known: Mapping[tuple[str, int], str]) -> None:
        """The same with what other ranks know."""
        for key in sorted(known.keys() - self.known.keys()):
            self.known[key] = known[key]
            if len(self.known) <= self._most:
                self._say(f"skipped a broken image ({len(self.known)} of at most {self._most}): {known[key]}")
        if len(self.known) > self._most:
            raise too_many(self.known.values(), self._most)


def too_many(texts: Iterable[str], most: int) -> Failure:
    """More broken images than data.max_bad_images allows, or than leave one to be read; `texts` name them."""
    listed = sorted(texts)
    more = f"; and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return Failure(
        f"more than {most} image {'file' if most == 1 else 'files'} cannot be read (data.max_bad_images)",
        found="; ".join(listed[:SHOWN]) + more,
        fix="replace or delete these files (`train data check` finds all), or raise data.max_bad_images",
        code=ExitCode.DATA,
    )
