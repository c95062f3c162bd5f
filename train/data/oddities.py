"""From what a walk through class folders met to lines about it: unread files, odd folders, small classes. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from train.data.imagefolder import BESIDE, HELD_OUT, Layout
from train.oneline import one_line

SHOWN: Final = 5  # kinds of files
NAMED: Final = 3  # classes
# Pictures that Pillow does not read everywhere: who has them takes them for images.
PICTURES: Final = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw")


def unread(endings: Mapping[str, int]) -> str | None:
    """The files that are no images, counted by ending, in words; None where there are none."""
    if not endings:
        return None
    kinds = sorted(endings.items(), key=lambda kind: (-kind[1], kind[0]))
    listed = ", ".join(f"{ending} ({count:,})" for ending, count in kinds[:SHOWN])
    more = f" and {len(kinds) - SHOWN} more endings" if len(kinds) > SHOWN else ""
    number = sum(endings.values())
    told = f"{number:,} files are not read" if number > 1 else "1 file is not read"
    return f"{told}: {listed}{more}{_fix(endings)}"


def _fix(endings: Mapping[str, int]) -> str:
    fixes = ["move images into the folders of their classes"] if any(one.endswith(BESIDE) for one in endings) else []
    fixes += ["save pictures of other kinds as .jpg or .png"] if any(one in PICTURES for one in endings) else []
    return f". fix: {'; '.join(fixes)}" if fixes else ""


def parts(inside: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """A warning for each class folder that looks like a part of the data: it would be trained on as one more class.

    Args:
        inside: of each class folder the folders directly in it.
    """
    found = {name: sorted((inside.keys() & {*folders}) - {name}) for name, folders in inside.items()}
    return tuple(_part(name, classes) for name, classes in found.items() if len(classes) > 1)[:NAMED]


def _part(name: str, classes: Sequence[str]) -> str:
    listed = ", ".join(map(one_line, classes[:NAMED])) + (", ..." if len(classes) > NAMED else "")
    sides = ", or the other class folders into data.root/train" if name.lower() in HELD_OUT else ""
    return (
        f"the class folder {one_line(name)} holds folders named like other classes ({listed}): a part of the data, not "
        f"a class? fix: move it beside data.root{sides}"
    )


def aside(found: Layout) -> str | None:
    """The folders beside the two sides that look like images, in words; None where there are none."""
    if not found.aside:
        return None
    listed = ", ".join(map(one_line, found.aside[:SHOWN]))
    more = f" and {len(found.aside) - SHOWN:,} more" if len(found.aside) > SHOWN else ""
    learned = one_line(found.training.name)
    measured = one_line(found.held_out.name) if found.held_out else f"a part of {learned}"
    return f"beside {learned}, which is trained on, and {measured}, which is held out, not read: {listed}{more}"


def none_held_out(classes: Sequence[str], training: Sequence[int], held_out: Sequence[int]) -> tuple[str, ...]:
    """A warning where classes are too small for an image to be set aside: nothing measures them.

    Args:
        training, held_out: images of each class.
    """
    missed = [
        (one_line(name), count) for name, count, other in zip(classes, training, held_out, strict=True) if not other
    ]
    if not missed:
        return ()
    fix = "fix: more images of them, or a larger data.val_fraction"
    if len(missed) == 1:
        return (f"class {missed[0][0]} has {_images(missed[0][1])}: none is held out. {fix.replace('them', 'it')}",)
    listed = ", ".join(f"{name} ({_images(count)})" for name, count in missed[:NAMED])
    more = f" and {len(missed) - NAMED:,} more" if len(missed) > NAMED else ""
    return (f"of {len(missed):,} classes no image is held out: {listed}{more}. {fix}",)


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"
