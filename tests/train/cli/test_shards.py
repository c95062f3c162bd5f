"""`train data pack` and `train data index`: their words, and what is refused before anything is written."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from tars import numbered, png, write_tar

from entrypoint import Failure
from train.cli import data


def run(*words: str, output: Path | None = None, size: int | None = None, quality: int | None = None) -> str:
    options = {"file": None, "as_json": False, "console": io.StringIO()}
    text, failure = data.run_command(
        words, output=None if output is None else str(output), size=size, quality=quality, **options
    )
    assert failure is None
    return text


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(5):
            (tmp_path / "photos" / name / f"{number}.png").write_bytes(png(number, side=32))
    return tmp_path / "photos"


def test_a_folder_of_class_folders_is_packed_and_the_answer_says_how_to_train_on_it(
    photos: Path, tmp_path: Path
) -> None:
    printed = run("pack", str(photos), output=tmp_path / "out")
    assert "2 classes, images: 8 for training, 2 for validation" in printed
    assert f"train data.name=shards data.root={tmp_path / 'out'}" in printed


def test_a_table_is_packed(photos: Path, tmp_path: Path) -> None:
    lines = [f"photos/{name}/{number}.png,{name}" for name in ("cat", "dog") for number in range(5)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    assert "images: 10 for training" in run(
        "pack", str(tmp_path / "labels.csv"), "data.val_fraction=0", output=tmp_path / "out"
    )


def test_shards_of_others_are_indexed(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", numbered(0, 6))
    assert "1 tar file of" in run("index", str(tmp_path))
    assert (tmp_path / "index.json").is_file()


@pytest.mark.parametrize(
    ("words", "options", "says"),
    [
        (("pack",), {}, "--output DIR"),
        (("pack",), {"output": Path("out"), "quality": 50}, "--size PIXELS"),
        (("pack",), {"output": Path("out"), "size": 4}, "from 16"),
        (("pack",), {"output": Path("out"), "size": 64, "quality": 101}, "to 100"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    photos: Path, words: tuple[str, ...], options: dict[str, object], says: str
) -> None:
    with pytest.raises(Failure) as caught:
        run(*words, str(photos), **options)  # type: ignore[arg-type]
    assert (caught.value.code, says in caught.value.fix) == (64, True), str(caught.value)
    assert not list(photos.parent.glob("out*"))
