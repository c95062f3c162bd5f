"""An InputSpec says what input a trained network takes; image files are read in that form.

As in the evaluation, images are cut to a square and scaled, and turned to grayscale where the
network wants it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.checkpoint import format
from train.checkpoint.format import CommittedCheckpoint
from train.config.schema import DataConfig, RunConfig
from train.data import augment, custom, decode, registry
from train.data.custom import DatasetSource
from train.data.image_folder import ImageFileSource
from train.data.shape import Shape
from train.data.splits import DataSplits, SampleSource
from train.inference.checkpoints import ChosenCheckpoint
from train.inference.evaluate import EmptySource

# What a file of images can be made into: gray or red, green and blue.
IMAGE_CHANNELS: Final = (1, 3)
# Of what the training's samples were made: files, read here; PIL images, cut and scaled here; or arrays, by others.
SampleOrigin = Literal["files", "pictures", "arrays"]
ARRAY_DATA_WARNING: Final = (
    "the training's data were arrays: how they were made of images is known to whoever wrote them. Image files become "
    "{shape} of their central square, in {colours}: the answers hold only where the arrays were made so too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """classes: one name for each score. shape: of one sample. bytes_: whether samples are bytes, laid around 0 by
    `augment.normalize`; floats go to the network as they are. made: of what they were made."""

    classes: tuple[str, ...]
    shape: Shape
    bytes_: bool
    made: SampleOrigin = "files"

    @property
    def sets(self) -> DataSplits:
        """The same as data without samples."""
        none = EmptySource(labels=torch.empty(0, dtype=torch.int64), stored=self.shape.stored)
        return DataSplits(training=none, validation=none, classes=self.classes, shape=self.shape)


def read_checkpoint_state(chosen: ChosenCheckpoint) -> dict[str, Any]:
    """What the checkpoint tells beside its tensors. Raises Failure (DATA) where it was damaged since it was chosen."""
    found = CommittedCheckpoint(path=chosen.path, step=chosen.contents.step, contents=chosen.contents)
    return format.load_checkpoint(found, groups=())[1]


def build_input_spec(config: RunConfig, told: Mapping[str, Any]) -> InputSpec:
    """From the checkpoint alone where the kind of data says it; arrays and data of the user's own are opened, for the
    shape: what they call their classes today need not be what the scores stand for.

    Raises:
        Failure: where such data is not there, or cannot be read.
    """
    classes = tuple(map(str, (told.get("data") or {}).get("classes") or ()))
    shape = registry.configured_shape(config.data)
    if classes and shape:
        return InputSpec(classes=classes, shape=shape, bytes_=True)
    sets = registry.open_splits(config.data)
    first = sets.training.read(np.arange(1))
    return InputSpec(
        classes=classes or sets.classes,
        shape=sets.shape,
        bytes_=first.dtype == torch.uint8,
        made=_sample_origin(config.data, sets.training),
    )


def _sample_origin(data: DataConfig, source: SampleSource) -> SampleOrigin:
    if registry.find_source(data.name).channels is not None or isinstance(source, ImageFileSource):
        return "files"
    return "pictures" if isinstance(source, DatasetSource) and custom.are_pil_images(source) else "arrays"


def refuse_image_files(takes: InputSpec) -> None:
    """Image files cannot be made into what some networks take.

    Raises:
        Failure: USAGE, saying what it takes.
    """
    size, what = takes.shape.size, f"samples of {takes.shape}"
    if len(size) != 2:
        found = f"clips of {size[0]} frames"
    elif not takes.bytes_:
        found = f"{what}, as floats: how they were made from images is known to whoever wrote the data"
    elif size[0] != size[1] or takes.shape.channels not in IMAGE_CHANNELS:
        found = f"{what}; image files become squares of 1 or 3 channels"
    else:
        return
    raise Failure(
        "this model does not take image files",
        found=found,
        fix="measure it on arrays with `train eval RUN data.root=...`; or hand it on with `train export`, whose "
        "README.md shows how to call it from Python",
        code=ExitCode.USAGE,
    )


def parse_sample_origin(told: object, name: object) -> SampleOrigin:
    """As an export tells it; of an older one that tells nothing, as far as the data's name does."""
    for one in get_args(SampleOrigin):
        if told == one:
            return one  # type: ignore[no-any-return]
    return "files" if told is None and registry.find_source(str(name)).channels is not None else "arrays"


def array_data_warning(takes: InputSpec) -> str | None:
    """What to say where image files are given to a network that learned from something else."""
    if takes.made != "arrays":
        return None
    return ARRAY_DATA_WARNING.format(shape=takes.shape, colours="gray" if takes.shape.channels == 1 else "RGB")


# What says nothing of the image: the disk is gone, or there is no room.
SYSTEM_EXIT_CODES: Final = (ExitCode.IO, ExitCode.RESOURCE)


def read_image(path: Path, shape: Shape, *, draft: bool = True) -> npt.NDArray[np.uint8]:
    """One image, uint8 [size, size, 1 or 3]. draft, and raises Failure, as `decode.decode_image`."""
    pixels = decode.decode_image(path, shape.size[0], 0, draft=draft)
    if shape.channels == 3:
        return pixels
    return np.asarray(Image.fromarray(pixels).convert("L"))[..., None]


def read_batch(
    paths: Sequence[Path], shape: Shape, threads: Executor, *, draft: bool = True
) -> tuple[Tensor, list[Failure | None]]:
    """Those that can be read, float32 [n, channels, size, size] as the network takes them; and for each path why not.

    Raises:
        Failure: IO or RESOURCE: the system failed, and the images may be fine.
    """
    found = list(threads.map(lambda path: _read_or_failure(path, shape, draft), paths))
    bad = [one if isinstance(one, Failure) else None for one in found]
    if gone := next((one for one in bad if one and one.code in SYSTEM_EXIT_CODES), None):
        raise gone
    whole = [one for one in found if not isinstance(one, Failure)]
    stacked = np.stack(whole) if whole else np.empty((0, *shape.stored), np.uint8)
    return augment.normalize(torch.from_numpy(stacked)), bad


def _read_or_failure(path: Path, shape: Shape, draft: bool) -> npt.NDArray[np.uint8] | Failure:
    try:
        return read_image(path, shape, draft=draft)
    except Failure as failure:
        return failure
