"""Both sides of the data become one, which is measured: every image of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from train.data import paths
from train.data.folder import Files
from train.data.sets import Samples, Sets, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """The samples of one source, and behind them those of another. labels: int64 [count] of all."""

    first: Source
    second: Source
    labels: Tensor

    def read(self, samples: Samples) -> Tensor:
        """As `Source.read`; each source is asked for its own."""
        count = len(self.first.labels)
        early = samples < count
        if early.all():
            return self.first.read(samples)
        if not early.any():
            return self.second.read(samples - count)
        mine, theirs = self.first.read(samples[early]), self.second.read(samples[~early] - count)
        read = torch.empty((len(samples), *mine.shape[1:]), dtype=mine.dtype)
        read[torch.from_numpy(early)], read[torch.from_numpy(~early)] = mine, theirs
        return read


def of(sets: Sets) -> Sets:
    """The same data with all of it on the held-out side, what is trained on first."""
    return replace(sets, held_out=_joined(sets.training, sets.held_out))


def _joined(first: Source, second: Source) -> Source:
    if not len(second.labels):
        return first
    labels = torch.cat([first.labels, second.labels])
    if isinstance(first, Files) and isinstance(second, Files):  # so that an image that cannot be read has one number
        every = paths.joined(paths.packed(first.paths), paths.packed(second.paths))
        return Files(every, labels, first.size)
    return Both(first=first, second=second, labels=labels)
