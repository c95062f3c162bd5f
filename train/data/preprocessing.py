"""`Preprocessing` says how a decoded image becomes a model's input in evaluation: fit, scaling, normalization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from entrypoint import ExitCode, Failure
from train.config.schema import KEYS, DataConfig, Rule, one_of
from train.fields import FINITE, check_fields

Interpolation = Literal["bilinear", "bicubic"]
FitName = Literal["crop", "pad", "stretch"]
DecodeName = Literal["auto", "exact", "fast", "gpu"]
INTERPOLATIONS: Final = get_args(Interpolation)
FIELDS: Final = {  # of the data section
    "normalize": KEYS["data.normalize"].rule,
    "crop_ratio": Rule(
        holds=lambda ratio: FINITE.holds(ratio) and KEYS["data.crop_ratio"].rule.holds(ratio),
        expected=KEYS["data.crop_ratio"].rule.expected,
    ),
    "interpolation": one_of(*INTERPOLATIONS),
    "fit": one_of(*get_args(FitName)),
    "decode": one_of(*get_args(DecodeName)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """The evaluation transform that weights were trained for. Published weights come with a record of it.

    mean, std: per channel, of pixels scaled to 0..1; one number holds for all channels. crop_ratio: the side of the
    central crop / the shorter side of the image, as timm's crop_pct; 1.0: the largest central square.
    fit: how an image of another shape gets the model's: its central part is cut out, a border is added to the whole
    image, or both its sides are scaled. decode: when a JPEG is decoded at a reduced size. auto: unless a random box is
    cut out of it. gpu: as auto, and a GPU decodes the images to train on.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)
    crop_ratio: float = 1.0
    interpolation: Interpolation = "bilinear"
    fit: FitName = "crop"
    decode: DecodeName = "auto"


# (byte - 127.5) / 63.75: about -2..2 for any data, so that no statistics have to be computed or stored.
DEFAULT_PREPROCESSING: Final = Preprocessing()


def configured_preprocessing(data: DataConfig, published: Preprocessing | None = None) -> Preprocessing:
    """The Preprocessing that the data section sets. What is `auto` there is as `published`, or as by default.

    Only a crop leaves a border out: with another fit the crop_ratio is 1.
    """
    auto = published or DEFAULT_PREPROCESSING
    fit = auto.fit if data.fit == "auto" else data.fit
    crop_ratio = auto.crop_ratio if fit == "crop" else 1.0
    normalize = data.normalize if isinstance(data.normalize, dict) else {"mean": auto.mean, "std": auto.std}
    return Preprocessing(
        mean=tuple(normalize["mean"]),
        std=tuple(normalize["std"]),
        crop_ratio=crop_ratio if data.crop_ratio == "auto" else data.crop_ratio,
        interpolation=auto.interpolation if data.interpolation == "auto" else data.interpolation,
        fit=fit,
        decode=auto.decode if data.decode == "auto" else data.decode,
    )


def parse_preprocessing(values: Mapping[str, Any]) -> Preprocessing:
    """The Preprocessing in JSON that `dataclasses.asdict` made.

    Raises:
        LookupError, TypeError, ValueError: the values are none.
    """
    # Older records lack these two.
    values = {"fit": DEFAULT_PREPROCESSING.fit, "decode": DEFAULT_PREPROCESSING.decode, **values}
    values["normalize"] = {"mean": [*values["mean"]], "std": [*values["std"]]}
    check_fields(values, FIELDS)
    return Preprocessing(
        mean=tuple(map(float, values["mean"])),
        std=tuple(map(float, values["std"])),
        crop_ratio=float(values["crop_ratio"]),
        interpolation=values["interpolation"],
        fit=values["fit"],
        decode=values["decode"],
    )


def keep_preprocessing(data: DataConfig, recorded: Mapping[str, Any]) -> DataConfig:
    """The data section with the values of a checkpoint's data section in place of `auto`.

    A run resumes, and is evaluated, with what it began with.

    Raises:
        Failure: DATA for a value that no config may have.
    """
    kept = {key: recorded[key] for key in FIELDS if getattr(data, key) == "auto" and key in recorded}
    try:
        check_fields({key: value for key, value in kept.items() if value != "auto"}, FIELDS, "data.", optional=True)
    except ValueError as error:
        raise Failure(
            "a checkpoint records how images are prepared, and no training prepares them so",
            found=str(error),
            fix="take another checkpoint; or, if you know how it was trained, set this key yourself",
            code=ExitCode.DATA,
        ) from error
    return replace(data, **kept)


def refuse_other_channels(preprocessing: Preprocessing, channels: int) -> None:
    """Refuse a normalization for another number of channels than the samples have.

    Raises:
        Failure: USAGE.
    """
    if len(preprocessing.mean) not in (1, channels):
        raise Failure(
            "data.normalize has numbers for another number of channels",
            found=f"{len(preprocessing.mean)} numbers, and samples of {channels} channels",
            fix="give one number for all channels, or one for each",
            code=ExitCode.USAGE,
        )


def set_preprocessing(data: DataConfig, published: Preprocessing | None) -> DataConfig:
    """The data section with the values of `published` weights in place of `auto`, so that the run records them."""
    if published is None:
        return data
    chosen = configured_preprocessing(data, published)
    return replace(
        data,
        normalize={"mean": [*chosen.mean], "std": [*chosen.std]},
        crop_ratio=chosen.crop_ratio,
        interpolation=chosen.interpolation,
        fit=chosen.fit,
        decode=chosen.decode,
    )
