"""This table describes the operations and presets of data.augment, so that they are checked without loading torch.

`train/data/operations.py` holds what each operation draws and does to pixels; a test compares the names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from train.names import nearest_name

# When an operation acts. `data.augment` lists them in this order.
# image: on the whole decoded image, before it is scaled. pixels: on bytes or floats as they are stored, one after the
# other. moves: the gather of `augment.apply`. values: on normalized pixels. batch: on images and labels of a batch.
STAGES: Final = ("image", "pixels", "moves", "values", "batch")
Entry = str | dict[str, Any]  # one entry of data.augment: a name, or {name: {argument: value}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of an operation: its default, and which values it takes."""

    default: Any
    holds: Callable[[Any], bool]
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What is known about one operation without torch.

    effects: no two operations of a list may share one. summary: for the docs and messages. bytes_only: whether it needs
    pixels from 0 to 255; otherwise it takes any numbers. channels: the numbers of channels that it takes; empty: any.
    """

    stage: str
    summary: str
    effects: tuple[str, ...]
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    bytes_only: bool = False
    channels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation of data.augment with the values of all its arguments."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def operation(self) -> Operation:
        """The entry of the table."""
        return OPERATIONS[self.name]


class Problem(ValueError):
    """Why a value of a key cannot be used, and what to write instead."""

    def __init__(self, *, expected: str, fix: str) -> None:
        super().__init__(expected)
        self.expected, self.fix = expected, fix


def is_number(value: Any) -> bool:
    """Whether it is a number; true and false are none."""
    return type(value) in (int, float)


def number(default: float, low: float, high: float) -> Argument:
    """A number from low to high."""
    return Argument(
        default=default,
        holds=lambda value: is_number(value) and low <= value <= high,
        expected=f"a number from {low:g} to {high:g}",
    )


def whole_number(default: int, low: int, high: int) -> Argument:
    """A whole number from low to high."""
    return Argument(
        default=default,
        holds=lambda value: type(value) is int and low <= value <= high,
        expected=f"a whole number from {low} to {high}",
    )


def interval(default: tuple[float, float], low: float, high: float) -> Argument:
    """[least, most]: two numbers in increasing order, above low and up to high."""
    return Argument(
        default=[*default],
        holds=lambda value: (
            isinstance(value, list)
            and len(value) == 2
            and all(map(is_number, value))
            and low < value[0] <= value[1] <= high
        ),
        expected=f"[least, most], both above {low:g} and up to {high:g}",
    )


def choice(default: str, *others: str) -> Argument:
    """One of these words."""
    words = (default, *others)
    return Argument(default=default, holds=lambda value: value in words, expected=f"one of {', '.join(words)}")


def is_color(value: Any) -> bool:
    """Whether it is [red, green, blue], from 0 to 255."""
    return isinstance(value, list) and len(value) == 3 and all(type(part) is int and 0 <= part <= 255 for part in value)


def probability(default: float) -> Argument:
    """The share of samples that an operation changes."""
    return number(default, 0, 1)


RATIO: Final = (3 / 4, 4 / 3)
DEFAULT_SHIFT: Final = 1 / 8  # of each side
OPERATIONS: Final[Mapping[str, Operation]] = {
    "random_resized_crop": Operation(
        stage="image",
        summary="cuts a part of the image (`scale`: its share of the area, `ratio`: width / height), scaled to "
        "`image_size`",
        effects=("crop",),
        arguments={"scale": interval((0.08, 1.0), 0, 1), "ratio": interval(RATIO, 0, 100)},
    ),
    "horizontal_flip": Operation(
        stage="pixels", summary="flips left to right", effects=("mirror",), arguments={"p": probability(0.5)}
    ),
    "vertical_flip": Operation(
        stage="pixels", summary="flips top to bottom", effects=("vertical flip",), arguments={"p": probability(0.5)}
    ),
    "rotate90": Operation(
        stage="pixels",
        summary="turns by 0, 90, 180 or 270 degrees, each as often; images that are no squares by 0 or 180",
        effects=("rotate90",),
    ),
    "trivial_augment": Operation(
        stage="pixels",
        summary="one of 14 operations (shear, shift, rotation, colours) of a random strength: TrivialAugment Wide",
        effects=("policy",),
        arguments={"interpolation": choice("nearest", "bilinear", "bicubic")},
        bytes_only=True,
        channels=(1, 3),
    ),
    "rand_augment": Operation(
        stage="pixels",
        summary="`num_ops` of the same 14 operations, each of strength `magnitude` of 30: RandAugment",
        effects=("policy",),
        arguments={
            "num_ops": whole_number(2, 1, 8),
            "magnitude": whole_number(9, 0, 30),
            "interpolation": choice("nearest", "bilinear", "bicubic"),
        },
        bytes_only=True,
        channels=(1, 3),
    ),
    "rand_augment_timm": Operation(
        stage="pixels",
        summary="timm's variant: up to `num_ops` of 15 operations, each with probability `p`, of strength `magnitude` "
        "of 10 with a standard deviation of `magnitude_std`",
        effects=("policy",),
        arguments={
            "num_ops": whole_number(2, 1, 8),
            "magnitude": number(9, 0, 10),
            "magnitude_std": number(0.5, 0, 10),
            "p": probability(0.5),
            "increasing": Argument(default=True, holds=lambda value: isinstance(value, bool), expected="true or false"),
            "interpolation": choice("random", "bilinear", "bicubic"),
            "fill": Argument(default=[128, 128, 128], holds=is_color, expected="[red, green, blue], from 0 to 255"),
        },
        bytes_only=True,
        channels=(1, 3),
    ),
    "color_jitter": Operation(
        stage="pixels",
        summary="changes brightness, contrast, saturation (factors from 1 - x to 1 + x) and hue (turned by up to x of "
        "the circle), in random order",
        effects=("colours",),
        arguments={
            "brightness": number(0.4, 0, 10),
            "contrast": number(0.4, 0, 10),
            "saturation": number(0.4, 0, 10),
            "hue": number(0.1, 0, 0.5),
            "p": probability(1.0),
        },
        bytes_only=True,
        channels=(1, 3),
    ),
    "grayscale": Operation(
        stage="pixels",
        summary="removes the colours",
        effects=("grayscale",),
        arguments={"p": probability(0.2)},
        bytes_only=True,
        channels=(1, 3),
    ),
    "standard": Operation(
        stage="moves",
        summary="shifts by up to `shift` of each side, fills the border with the mirrored image; flips half of the "
        "samples left to right",
        effects=("shift", "mirror"),
        arguments={"shift": number(DEFAULT_SHIFT, 0, 0.5)},
    ),
    "translate": Operation(
        stage="moves",
        summary="the same shift, filled with gray",
        effects=("shift",),
        arguments={"shift": number(DEFAULT_SHIFT, 0, 0.5)},
    ),
    "mirror": Operation(stage="moves", summary="flips half of the samples left to right", effects=("mirror",)),
    "cutout": Operation(
        stage="moves", summary="makes a random square gray: 3/8 of the shorter side", effects=("cutout",)
    ),
    "random_erasing": Operation(
        stage="values",
        summary="sets a rectangle to the mean colour (`scale`: its share of the area, `ratio`: height / width), with "
        "`mode` color to a random colour, with pixel to noise",
        effects=("random erasing",),
        arguments={
            "p": probability(0.25),
            "scale": interval((0.02, 1 / 3), 0, 1),
            "ratio": interval((0.3, 3.3), 0, 100),
            "mode": choice("const", "color", "pixel"),
        },
    ),
    "mixup": Operation(
        stage="batch",
        summary="adds a random other image: the own share is drawn from Beta(`alpha`, `alpha`); labels mix alike",
        effects=("mixup",),
        arguments={"alpha": number(0.2, 0.01, 100), "p": probability(1.0)},
    ),
    "cutmix": Operation(
        stage="batch",
        summary="fills a box with a random other image: its share of the area is drawn from Beta(`alpha`, `alpha`); "
        "labels mix alike. With mixup, each sample gets one of the two, as often",
        effects=("cutmix",),
        arguments={"alpha": number(1.0, 0.01, 100), "p": probability(1.0)},
    ),
}
NONE: Final = "none"
# A preset is a name for a list. `standard` and the other words without arguments are operations, which need none.
PRESETS: Final[Mapping[str, Sequence[Entry]]] = {
    "photos": (
        {"random_resized_crop": {"scale": [0.35, 1.0]}},
        "horizontal_flip",
        {"color_jitter": {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.02}},
    ),
    "micrographs": (
        "horizontal_flip",
        "vertical_flip",
        "rotate90",
        {"color_jitter": {"brightness": 0.2, "contrast": 0.2, "saturation": 0, "hue": 0}},
    ),
    "imagenet": ("random_resized_crop", "horizontal_flip"),
}
EXPECTED: Final = (
    "none, a preset ("
    + ", ".join(PRESETS)
    + "), or a list of operations: name, or {name: {argument: value}}; the operations are "
    + ", ".join(OPERATIONS)
)


def expand(augment: str | Sequence[Entry]) -> tuple[Step, ...]:
    """The operations of a data.augment; none for `none`. Raises Problem for one that cannot be used."""
    entries: Sequence[Entry] = [augment] if isinstance(augment, str) else augment
    if not entries:
        raise Problem(expected=EXPECTED, fix=f"write {NONE}, or name an operation")
    if NONE in entries:
        if len(entries) > 1:
            raise Problem(expected=f"{NONE} alone", fix=f"remove {NONE} from the list")
        return ()
    steps = [step for entry in entries for step in _expand_entry(entry)]
    _refuse_combination(steps)
    return tuple(steps)


def stage_steps(augment: str | Sequence[Entry], stage: str) -> tuple[Step, ...]:
    """The operations of one stage, in order."""
    return tuple(step for step in expand(augment) if step.operation.stage == stage)


def find_problem(augment: str | Sequence[Entry]) -> Problem | None:
    """Why this data.augment cannot be used; None if it can."""
    try:
        expand(augment)
    except Problem as problem:
        return problem
    return None


def _expand_entry(entry: Entry) -> Sequence[Step]:
    """The operations of a preset, or the one of a name. Raises Problem for its form, its name, or its arguments."""
    if isinstance(entry, str) and entry in PRESETS:
        return expand(PRESETS[entry])
    named = {entry: None} if isinstance(entry, str) else entry
    name, overrides = next(iter(named.items())) if isinstance(named, dict) and len(named) == 1 else ("", [])
    if not isinstance(overrides, dict | None):
        raise Problem(
            expected="each entry a name, or one name with its arguments",
            fix="write - name, or - name: {argument: value}",
        )
    if name not in OPERATIONS:
        names = [NONE, *PRESETS, *OPERATIONS]
        close = nearest_name(str(name), names)
        raise Problem(
            expected=f"one of {', '.join(names)}",
            fix=f"write {close} instead of {name}" if close else "name one of these, or leave data.augment out",
        )
    arguments = OPERATIONS[name].arguments
    for key, value in (overrides or {}).items():
        if key not in arguments:
            close = nearest_name(str(key), arguments)
            raise Problem(
                expected=f"arguments of {name}: {', '.join(arguments) or 'none'}",
                fix=f"write {close} instead of {key}" if close else f"remove {key}",
            )
        if not arguments[key].holds(value):
            raise Problem(
                expected=f"{name}.{key}: {arguments[key].expected}",
                fix=f"correct it, or leave it out: the default is {arguments[key].default}",
            )
    defaults = {key: argument.default for key, argument in arguments.items()}
    return [Step(name=name, arguments=defaults | (overrides or {}))]


def _refuse_combination(steps: Sequence[Step]) -> None:
    """Raises Problem for two operations that do the same, or that are in another order than they act."""
    owners: dict[str, str] = {}
    for step in steps:
        for effect in step.operation.effects:
            if effect in owners:
                raise Problem(
                    expected=f"what goes together: {owners[effect]} and {step.name} do the same",
                    fix=f"remove {owners[effect]} or {step.name}",
                )
            owners[effect] = step.name
    in_order = sorted(steps, key=lambda step: STAGES.index(step.operation.stage))
    if in_order != [*steps]:
        names = ", ".join(step.name for step in in_order)
        raise Problem(expected="the operations in the order in which they act", fix=f"write them as: {names}")
