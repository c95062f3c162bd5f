"""A source of numbered images, some of them broken."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.data.batch import Batch
from train.data.splits import SampleIndices, SampleSource

BAD = (2, 3, 9)


def collate(images: Any, labels: Tensor) -> Batch:
    """As `Task.collate`."""
    return {"image": images, "label": labels}


class Numbers(SampleSource):
    """Ten images of one pixel, which holds the image's number; some are broken. Labels are tens."""

    labels = torch.arange(10) * 10

    def __init__(self, bad: tuple[int, ...], code: ExitCode) -> None:
        self.bad, self.code = bad, code

    def read(self, samples: SampleIndices) -> Tensor:
        for sample in samples:
            if sample in self.bad:
                raise Failure(f"image {sample}", found=f"{sample}.png", fix="-", code=self.code)
        return torch.from_numpy(samples).to(torch.uint8).reshape(-1, 1, 1, 1)
