"""This table describes the project's own models, so that they are checked without loading torch.

A new model needs its module in train/models and one row here. A test compares each row with the
signature of its builder. torchvision's models need no row: building them shows what they take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """A model of this project.

    builder: MODULE:FUNCTION in train/models; the function takes classes, shape and the arguments.
    arguments: what model.args may set. dims: the dimensions of a sample without its channels, 2 for
    images and 3 for clips.
    """

    builder: str
    arguments: Sequence[str]
    dims: int = 2


# By model.name. The first is the quickstart's.
BUILTIN_MODELS: Final[Mapping[str, BuiltinModel]] = {
    "small_cnn": BuiltinModel(builder="small_cnn:small_cnn", arguments=("width", "blocks", "norm", "dropout", "pool")),
    "wide_resnet": BuiltinModel(builder="wide_resnet:wide_resnet", arguments=("depth", "width", "dropout")),
    "cnn3d": BuiltinModel(builder="cnn3d:cnn3d", arguments=("width", "blocks", "norm", "dropout"), dims=3),
}
