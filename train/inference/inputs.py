"""An InputSpec describes the input of a trained network; image files are read in that form.

As in the evaluation, images are fitted to the network's size, and converted to grayscale if the
network has one input channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, shell_command
from train.config.schema import RunConfig
from train.data import augment, decode, registry
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing, configured_preprocessing
from train.data.shape import Shape, height_and_width
from train.data.splits import DataSplits, EmptySource, SampleOrigin
from train.data_fit import describe_image_file_obstacle, sample_origin
from train.inference import checkpoints
from train.tasks import CLASSIFICATION, TASKS, TargetScale

DEFAULT_THRESHOLD: Final = 0.5  # of a label's probability, for weights that no evaluation measured
ARRAY_DATA_WARNING: Final = (
    "the training's data were arrays: how they were made of images is known to whoever wrote them. Image files become "
    "{shape} of their central part, in {colours}: the answers hold only where the arrays were made so too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """The input of a network.

    classes: one name for each score. shape: of one sample. bytes_: samples are bytes, which
    `augment.normalize` converts to floats; otherwise they are floats already. origin: of the
    training's samples. task, target: as in `DataSplits`. thresholds: of each label's probability, of
    several labels per image. preprocessing: of image files, if samples are bytes. trained_shape: of the training's
    samples, for which the network is built, if it is another.
    """

    classes: tuple[str, ...]
    shape: Shape
    bytes_: bool
    origin: SampleOrigin = "files"
    task: str = CLASSIFICATION
    target: TargetScale | None = None
    thresholds: tuple[float, ...] | None = None
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING
    trained_shape: Shape | None = None

    @property
    def built_shape(self) -> Shape:
        """The shape of samples for which the network is built."""
        return self.trained_shape or self.shape

    @property
    def sets(self) -> DataSplits:
        """Data with this shape and these classes, without samples."""
        empty = EmptySource(labels=torch.empty(0, dtype=torch.int64), stored=self.shape.stored)
        return DataSplits(
            training=empty,
            validation=empty,
            classes=self.classes,
            shape=self.built_shape,
            evaluation_shape=self.shape,
            task=self.task,
            target=self.target,
        )


def build_input_spec(config: RunConfig, state: Mapping[str, Any]) -> InputSpec:
    """Build the InputSpec from the checkpoint's config and `state`.

    Arrays and the user's own data are opened for their shape. The classes come from the checkpoint
    if it has them: the data may have other names today.

    Raises:
        Failure: if data that must be opened is missing or unreadable.
    """
    if config.eval.threshold != checkpoints.trained_threshold(state):
        raise Failure(
            "eval.threshold is the training's: predictions and exports give the labels whose scores it measured",
            found=f"eval.threshold: {checkpoints.trained_threshold(state)} -> {config.eval.threshold}",
            fix=f"leave it out; `{shell_command('train eval RUN eval.threshold=auto')}` measures others",
            code=ExitCode.USAGE,
        )
    recorded = state.get("data") or {}
    try:
        classes = checkpoints.recorded_classes(recorded)
        task = checkpoints.recorded_task(recorded)
        if checkpoints.THRESHOLD_KEY in TASKS[task["task"]].keys:
            thresholds = checkpoints.label_thresholds(state, config.eval, len(classes))
            task["thresholds"] = thresholds or (DEFAULT_THRESHOLD,) * len(classes)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Failure(
            "the checkpoint does not say what its labels were",
            found=f"{type(error).__name__}: {error}",
            fix=checkpoints.OTHER_CHECKPOINT_FIX,
            code=ExitCode.DATA,
        ) from error
    origin: SampleOrigin = "files"
    bytes_, shape = True, registry.configured_shape(config.data)
    if not classes or shape is None:
        sets = registry.open_splits(config.data)
        classes, shape = classes or sets.classes, sets.shape
        bytes_ = sets.training.read(np.arange(1)).dtype == torch.uint8
        origin = sample_origin(config.data, sets.training)
    sides = shape.size if config.eval.image_size is None else height_and_width(config.eval.image_size)
    return InputSpec(
        classes=classes,
        shape=Shape(channels=shape.channels, size=sides),
        trained_shape=None if sides == shape.size else shape,
        bytes_=bytes_,
        origin=origin,
        preprocessing=configured_preprocessing(config.data),
        **task,
    )


def refuse_image_files(input_spec: InputSpec) -> None:
    """Refuse a network whose input cannot be made from image files.

    Raises:
        Failure: USAGE, with the input that it takes.
    """
    obstacle = describe_image_file_obstacle(input_spec.shape, bytes_=input_spec.bytes_)
    if obstacle is None:
        return
    raise Failure(
        "this model does not take image files",
        found=obstacle,
        fix=f"measure it on arrays with `{shell_command('train eval RUN data.root=...')}`; or hand it on with "
        f"`{shell_command('train export RUN --output DIR')}`, whose README.md shows how to call it from Python",
        code=ExitCode.USAGE,
    )


def parse_sample_origin(recorded: object, name: object) -> SampleOrigin:
    """The origin that an export recorded. For an older export without it, data.name decides."""
    for origin in get_args(SampleOrigin):
        if recorded == origin:
            return origin  # type: ignore[no-any-return]
    return "files" if recorded is None and registry.find_source(str(name)).channels is not None else "arrays"


def array_data_warning(input_spec: InputSpec) -> str | None:
    """The warning for image files as input of a network that was trained on arrays; otherwise None."""
    if input_spec.origin != "arrays":
        return None
    return ARRAY_DATA_WARNING.format(
        shape=input_spec.shape, colours="gray" if input_spec.shape.channels == 1 else "RGB"
    )


# Errors of the system, not of the image: the disk failed, or memory ran out.
SYSTEM_EXIT_CODES: Final = (ExitCode.IO, ExitCode.RESOURCE)


def read_image(
    path: Path, shape: Shape, preprocessing: Preprocessing = DEFAULT_PREPROCESSING, *, draft: bool = True
) -> npt.NDArray[np.uint8]:
    """Read one image, uint8 [height, width, 1 or 3]. draft, and Failure, as `decode.decode_image`."""
    return decode.decode_image(path, shape.size, 0, preprocessing, draft=draft, channels=shape.channels)


def read_batch(
    paths: Sequence[Path],
    shape: Shape,
    threads: Executor,
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING,
    *,
    draft: bool = True,
) -> tuple[Tensor, list[Failure | None]]:
    """(the readable images, float32 [n, channels, height, width]; for each path its failure or None).

    Raises:
        Failure: IO or RESOURCE, if the system failed; then the images may be fine.
    """
    results = list(threads.map(lambda path: _read_or_failure(path, shape, preprocessing, draft), paths))
    bad = [result if isinstance(result, Failure) else None for result in results]
    if system_failure := next((result for result in bad if result and result.code in SYSTEM_EXIT_CODES), None):
        raise system_failure
    images = [result for result in results if not isinstance(result, Failure)]
    stacked = np.stack(images) if images else np.empty((0, *shape.stored), np.uint8)
    return augment.normalize(torch.from_numpy(stacked), preprocessing), bad


def _read_or_failure(
    path: Path, shape: Shape, preprocessing: Preprocessing, draft: bool
) -> npt.NDArray[np.uint8] | Failure:
    try:
        return read_image(path, shape, preprocessing, draft=draft)
    except Failure as failure:
        return failure
