"""A user's walk on a cluster: what is typed in a folder of theirs, what they read, and what is wrong with that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from random import Random

from bed import Cluster
from PIL import Image, ImageDraw

# Lines that warn of what this user can do nothing about, and why they may stand there.
EXCUSED: Mapping[str, str] = {
    "Could not find any nv files on this host": "Apptainer's own, of --nv on a node without a GPU",
}
SUFFIXES = ("html", "json", "jsonl", "log", "md", "out", "png", "safetensors", "sh", "sif", "yaml")
YET = ("(new)", "not there yet")  # with these words a line may name a folder that a training will make
BARE = re.compile(rf"[\w-][\w.-]*\.(?:{'|'.join(SUFFIXES)})")
WITH_FOLDER = re.compile(r"/?[\w.+-]+(?:/[\w.+-]+)+/?|/[\w.+-]+/?")
LOOK = 'for path; do [[ -e $path ]] || echo "$path"; done'


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How a step ended, and all that the user read of it."""

    code: int
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody on the login node, in a folder `work` that holds train.sif and what they made themselves."""

    cluster: Cluster
    work: str

    @property
    def here(self) -> Path:
        """Their folder, as this machine sees it."""
        return self.cluster.here(self.work)

    def types(self, *words: str, seconds: float = 120) -> Told:
        """A command, killed where it takes longer."""
        done = self.cluster.login(*words, cwd=self.work, seconds=seconds)
        return Told(code=done.returncode, output=done.stdout)

    def inside(self, *words: str, seconds: float = 120) -> Told:
        """The same in the image, as the documents write it."""
        return self.types("apptainer", "exec", "train.sif", *words, seconds=seconds)

    def lost(self, told: Told) -> list[str]:
        """Paths in it that lead nowhere, as the image on the login node sees them."""
        places = paths(told.output, {path.name for path in self.here.iterdir()})
        looked = sorted({name for candidates in places.values() for name in candidates})
        missing = self.inside("bash", "-c", LOOK, "bash", *looked).output.splitlines()
        return [path for path, candidates in places.items() if set(candidates) <= set(missing)]


def unexplained(output: str) -> list[str]:
    """Lines that warn, and say neither there nor in the next line what to do."""
    lines = output.splitlines()
    pairs = zip(lines, [*lines[1:], ""], strict=True)
    warned = [line for line, after in pairs if re.search("warn", line, re.I) and "fix:" not in line + after]
    return [line for line in warned if not any(known in line for known in EXCUSED)]


def paths(output: str, top: set[str]) -> dict[str, list[str]]:
    """Each path in the output, and where it may be meant: there, or below a folder that the output names.

    top: what lies in the working directory: `runs/one` is a path, `images/s` is not.
    """
    told = " ".join(line for line in output.splitlines() if not any(words in line for words in YET))
    words = [part.strip(".,:;()[]'\"`") for word in told.split() if "://" not in word for part in word.split("=")]
    found = {word for word in words if _is_path(word, top)}
    named = {*found, *(str(PurePosixPath(word).parent) for word in found)}
    folders = sorted(name for name in named if name != "." and not BARE.fullmatch(PurePosixPath(name).name))
    return {word: [word, *(f"{folder}/{word}" for folder in folders if "/" not in word)] for word in sorted(found)}


def _is_path(word: str, top: set[str]) -> bool:
    if WITH_FOLDER.fullmatch(word):
        return word.startswith("/") or word.split("/")[0] in top or bool(BARE.fullmatch(word.split("/")[-1]))
    return bool(BARE.fullmatch(word))


def draw(root: Path, shapes: Sequence[str] = ("circle", "square", "triangle"), each: int = 40) -> None:
    """A folder of pictures for each shape, JPEG and PNG, of other colours, sizes and places."""
    for shape in shapes:
        (root / shape).mkdir(parents=True)
        for number in range(each):
            chance = Random(f"{shape}{number}")
            picture = Image.new("RGB", (64, 48), _colour(chance, 0, 90))
            _figure(ImageDraw.Draw(picture), shape, chance)
            picture.save(root / shape / f"{number:02d}.{('jpg', 'png')[number % 2]}")


def _figure(draws: ImageDraw.ImageDraw, shape: str, chance: Random) -> None:
    radius, colour = chance.randint(12, 20), _colour(chance, 150, 255)
    circle = (chance.randint(22, 42), chance.randint(20, 28), radius)
    if shape == "circle":
        draws.ellipse([circle[0] - radius, circle[1] - radius, circle[0] + radius, circle[1] + radius], fill=colour)
    else:
        draws.regular_polygon(circle, 4 if shape == "square" else 3, fill=colour)


def _colour(chance: Random, low: int, high: int) -> tuple[int, int, int]:
    return chance.randint(low, high), chance.randint(low, high), chance.randint(low, high)
