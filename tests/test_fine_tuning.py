"""docs/fine-tuning.md: a new user types its commands in a folder of JPEG photos, from weights to ONNX."""

from __future__ import annotations

import colorsys
import re
from pathlib import Path

import numpy as np
import pytest
from pages import commands
from PIL import ExifTags, Image, ImageDraw
from processes import python

PAGE = Path(__file__).parents[1] / "docs" / "fine-tuning.md"
TEXT = PAGE.read_text()
# Hue of the petals, and their number.
FLOWERS = {"daisy": (0.15, 9), "poppy": (0.0, 4), "tulip": (0.75, 2)}
OTHERS = {"hill": (0.3, 1), "lake": (0.6, 3), "rock": (0.08, 6)}
PHOTOS_OF_A_CLASS = 24


def photograph(path: Path, hue: float, petals: int, number: int) -> None:
    """One JPEG of a flower on a meadow: its size, place, turn and light differ from photo to photo."""
    rng = np.random.default_rng([petals, number])
    size = (int(rng.integers(80, 140)), int(rng.integers(80, 140)))
    noise = rng.integers(0, 70, (size[1], size[0], 3), np.uint8) + np.array([40, 90, 40], np.uint8)
    image = Image.fromarray(noise)
    draw = ImageDraw.Draw(image)
    middle, radius = np.array(size) / 2 + rng.uniform(-8, 8, 2), min(size) / 4
    color = tuple(int(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.8, rng.uniform(0.7, 1)))
    for petal in range(petals):
        angle = 2 * np.pi * petal / petals + rng.uniform(0, 0.5)
        x, y = middle + radius * np.array([np.cos(angle), np.sin(angle)])
        draw.ellipse((x - radius / 1.5, y - radius / 1.5, x + radius / 1.5, y + radius / 1.5), fill=color)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = int(rng.choice([1, 3, 6, 8]))  # as the camera was held
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=85, exif=exif)


def take_photos(folder: Path) -> None:
    """The folders that the page begins with."""
    for root, classes in (("photos", FLOWERS), ("more-photos", OTHERS)):
        for name, (hue, petals) in classes.items():
            for number in range(PHOTOS_OF_A_CLASS):
                photograph(folder / root / name / f"{number:03d}.jpg", hue, petals, number)
    for name, flower in zip("abc", FLOWERS.values(), strict=True):
        photograph(folder / "new" / f"{name}.jpg", *flower, number=1000)


def block(language: str) -> str:
    (content,) = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.S | re.M)
    return str(content)


@pytest.mark.slow
@pytest.mark.every_run
@pytest.mark.timeout(900)
def test_its_commands_lead_from_weights_to_an_onnx_file(tmp_path: Path) -> None:
    take_photos(tmp_path)
    (tmp_path / "flowers.yaml").write_text(block("yaml"))
    printed = {}
    for command in commands(PAGE):
        assert command.runs
        program, *words = command.words
        ended = python("-m", program, *words, cwd=tmp_path, timeout=600)
        assert ended.returncode == 0, f"{command.text}\n{ended.stdout}{ended.stderr}"
        assert "WARNING" not in ended.stderr, ended.stderr
        printed[words[0]] = ended.stdout
    predicted = dict(line.split("\t")[:2] for line in printed["predict"].splitlines())
    assert list(predicted) == ["new/a.jpg", "new/b.jpg", "new/c.jpg"]
    assert sum(map(np.equal, predicted.values(), FLOWERS)) >= 2
    page = (tmp_path / "runs/flowers/report/report.html").read_text()
    assert [name for name in ("What went wrong", "What the network sees") if name not in page] == []
    (tmp_path / "classify.py").write_text(block("python"))
    for path, name in predicted.items():
        (tmp_path / "new/a.jpg").write_bytes((tmp_path / path).read_bytes())
        ended = python("classify.py", cwd=tmp_path)
        assert (ended.stdout.split(), ended.stderr) == ([name], "")
    card = (tmp_path / "flowers/README.md").read_text()
    assert block("python").replace("new/a.jpg", "photo.jpg") in card
