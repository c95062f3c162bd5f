"""The `Augmenter` applies data.augment to training samples, stage by stage, wherever they are read."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.config import augmentations
from train.config.augmentations import Step
from train.config.schema import DataConfig
from train.data import mixing
from train.data.batch import Batch
from train.data.boxes import CropDraws
from train.data.splits import CroppedReader, DataSplits
from train.tasks import TASKS

Int64Array = npt.NDArray[np.int64]
CROP: Final = "random_resized_crop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmenter:
    """What happens to each training sample, the same on any rank, in any worker and in any batch.

    stored, values, mixes: the operations on stored pixels, on normalized ones, and on whole batches. moves: the
    words of `augment.apply`; ("none",) for none. shift: their largest shift / the side of the image. crop:
    random_resized_crop, if the reader does it. read_cropped: how the source reads whole images and cuts them; None:
    the stored samples are cut.
    """

    stored: tuple[Step, ...]
    moves: tuple[str, ...]
    values: tuple[Step, ...]
    seed: int
    shift: float = augmentations.DEFAULT_SHIFT
    mixes: tuple[Step, ...] = ()
    crop: Step | None = None
    read_cropped: CroppedReader | None = None

    @property
    def acts_in_reader(self) -> bool:
        """Whether data workers have anything to do beside reading."""
        return bool(self.stored) or self.crop is not None

    def crop_draws(self, keys: Int64Array, epoch: int) -> CropDraws | None:
        """The random numbers with which the reader cuts whole images; None if it does not."""
        if self.crop is None:
            return None
        numbers = _operations().draw_numbers(self.crop, keys, seed=self.seed, epoch=epoch)
        return CropDraws(numbers, self.crop.arguments)

    def augment_stored(self, pixels: Tensor, keys: Int64Array, epoch: int) -> Tensor:
        """Change pixels as they are stored, [n, *size, channels], one operation after the other."""
        if not self.stored:
            return pixels
        images = pixels.movedim(-1, -3)
        for step in self.stored:
            images = _operations().apply_step(images, step, keys, seed=self.seed, epoch=epoch)
        return images.movedim(-3, -1).contiguous()

    def augment_values(self, images: Tensor, keys: Int64Array, epoch: int) -> Tensor:
        """Change normalized pixels, [n, channels, *size]; may write into `images`."""
        for step in self.values:
            images = _operations().apply_step(images, step, keys, seed=self.seed, epoch=epoch)
        return images

    def mix(self, batch: Batch, keys: Int64Array, epoch: int) -> None:
        """Mix normalized images with their neighbours, where data.augment does; see `mixing.mix_batch`."""
        if self.mixes:
            height, width = batch["image"].shape[-2:]
            draws = mixing.draw_mix(self.mixes, keys, size=(height, width), seed=self.seed, epoch=epoch)
            mixing.mix_batch(batch, draws)

    def refuse_odd_micro_batch(self, micro_batch: int) -> None:
        """Refuse a micro batch in which a sample has no neighbour to be mixed with.

        Raises:
            Failure: USAGE.
        """
        if self.mixes and micro_batch % 2:
            raise Failure(
                f"data.augment: {self.mixes[0].name} mixes samples in pairs, and the micro batch is odd",
                found=f"a micro batch of {micro_batch}",
                fix="set train.micro_batch_size to an even number that divides the share of each rank",
                code=ExitCode.USAGE,
            )


def _operations() -> ModuleType:
    """torchvision takes a second to load, and most runs need none of its operations."""
    from train.data import operations

    return operations


def build_augmenter(splits: DataSplits, data: DataConfig, seed: int) -> Augmenter:
    """The augmenter of the training samples.

    Raises:
        Failure: USAGE for an operation that these samples cannot take.
    """
    steps = augmentations.expand(data.augment)
    if not splits.mirror:
        steps = tuple(step for step in steps if step.name != "horizontal_flip")
    _refuse_unfit_steps(steps, splits)
    by_stage = {stage: tuple(step for step in steps if step.operation.stage == stage) for stage in augmentations.STAGES}
    crop = next(iter(by_stage["image"]), None)
    read_cropped = None if crop is None else splits.training.cropped_reader()
    if by_stage["image"] or by_stage["pixels"] or by_stage["values"]:
        _operations()  # loaded before workers are forked
    stored = by_stage["pixels"] if read_cropped else (*by_stage["image"], *by_stage["pixels"])
    return Augmenter(
        stored=stored,
        moves=tuple(step.name for step in by_stage["moves"]) or (augmentations.NONE,),
        shift=next((step.arguments["shift"] for step in by_stage["moves"] if "shift" in step.arguments), 0.0),
        values=by_stage["values"],
        mixes=by_stage["batch"],
        seed=seed,
        crop=crop if read_cropped else None,
        read_cropped=read_cropped,
    )


def needs_whole_images(splits: DataSplits, data: DataConfig) -> bool:
    """Whether training needs images as they are in their files, which are neither kept in memory nor in a cache."""
    return bool(augmentations.stage_steps(data.augment, "image")) and splits.training.cropped_reader() is not None


def refuse_stored_images(splits: DataSplits, data: DataConfig) -> None:
    """Refuse to keep scaled images for a training that cuts whole ones.

    Raises:
        Failure: USAGE.
    """
    keeps = {"data.loader: memory": data.loader == "memory", f"data.cache: {data.cache}": data.cache is not None}
    setting = next((setting for setting, is_set in keeps.items() if is_set), None)
    if setting is None or not needs_whole_images(splits, data):
        return
    key = setting.partition(":")[0]
    raise Failure(
        f"{CROP} cuts whole images, and {key} keeps images that are cut and scaled already",
        found=setting,
        fix=f"leave {key} out: data workers decode the files in each epoch; or take {CROP} out of data.augment",
        code=ExitCode.USAGE,
    )


def _refuse_unfit_steps(steps: tuple[Step, ...], splits: DataSplits) -> None:
    for step in steps:
        needs = step.operation
        if needs.stage == "batch" and not TASKS[splits.task].has_classes:
            raise _unfit_failure(step, "images with numbers, whose loss is not linear in the number", "labels")
        if needs.bytes_only and splits.floats:
            raise _unfit_failure(step, "floats", "bytes, from 0 to 255")
        if needs.channels and splits.shape.channels not in needs.channels:
            raise _unfit_failure(
                step, f"images of {splits.shape.channels} channels", f"{' or '.join(map(str, needs.channels))} channels"
            )


def _unfit_failure(step: Step, samples: str, expected: str) -> Failure:
    return Failure(
        f"data.augment: {step.name} cannot change these samples",
        found=samples,
        expected=expected,
        fix=f"take {step.name} out of data.augment",
        code=ExitCode.USAGE,
    )
