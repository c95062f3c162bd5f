"""`train predict` from a shell: which image files its words mean, lines on stdout, and what is broken on stderr."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoints import flip
from images import write_image
from inference import run_command
from jobs import trained
from PIL import Image
from processes import Started, python, unmeasured

from entrypoint import Failure
from train.cli import predict as predict_command

CPU = {"ENTRYPOINT_DEVICE": "cpu"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    trained(folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A run that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def predict(*words: str | Path) -> int:
    return run_command("predict", *words)


def test_each_image_is_a_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write_image(Path("photos") / name, 9) for name in ("b c.png", "a.jpg")]
    assert predict(run, "photos") == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == [str(path) for path in sorted(paths)]
    assert all(name in ("outline-0", "outline-1") and 0.5 <= float(share) <= 1 for _, name, share in lines)


def test_images_of_12_bits_are_warned_of(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(np.full((8, 8), 4095, np.uint16)).save("a.png")
    assert predict(run, "a.png") == 0
    assert "WARNING: 1 image of 16 bits looked at, no value above 4,095 of 65,535" in capsys.readouterr().err


@pytest.fixture(scope="module")
def of_arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and its export beside it, that learned from an .npz file."""
    folder = tmp_path_factory.mktemp("of_arrays")
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    np.savez(folder / "a.npz", images=images, labels=np.arange(40) % 2)
    trained(folder / "run", "data.name=npz", f"data.root={folder / 'a.npz'}", "train.max_steps=2")
    assert run_command("export", str(folder / "run"), "--output", str(folder / "model")) == 0
    return folder


@pytest.mark.parametrize("name", ["run", "model"])
def test_a_model_that_learned_from_arrays_answers_with_a_warning(
    of_arrays: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_image(Path("a.png"))
    assert predict(of_arrays / name, "a.png", "a.png") == 0
    printed = capsys.readouterr()
    assert (printed.out.count("a.png"), printed.err.count("WARNING: the training's data were arrays")) == (2, 1)


def test_a_model_that_learned_from_files_answers_without_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a.png"))
    assert predict(run, "a.png") == 0
    assert "WARNING" not in capsys.readouterr().err


def test_json_is_one_object_a_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a.png"))
    assert predict(run, "a.png", "a.png", "--json", "--top", "2") == 0
    predictions = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(line["top"]) for line in predictions] == [2, 2]
    assert predictions[0]["class"] == predictions[0]["top"][0]["class"]


def table(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_a_table_holds_what_the_lines_say(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a, b.png"))
    write_image(Path("=c.png"), 200)
    assert predict(run, "a, b.png", "=c.png", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert predict(run, "a, b.png", "=c.png", "--csv", "out.csv") == 0
    printed, rows = capsys.readouterr(), table("out.csv")
    assert (printed.out, "2 rows in out.csv" in printed.err) == ("", True)
    assert [row["path"] for row in rows] == ["a, b.png", "./=c.png"]
    assert [row["prediction"] for row in rows] == [line["class"] for line in lines]
    assert [float(row["confidence"]) for row in rows] == pytest.approx(
        [line["probability"] for line in lines], abs=1e-6
    )


def test_a_table_of_all_classes_has_a_column_for_each(run: Path) -> None:
    write_image(Path("a.png"))
    assert predict(run, "a.png", "--csv", "out.csv", "--all-classes", "--top", "9") == 0
    (row,) = table("out.csv")
    shares = {name: float(row[f"probability of {name}"]) for name in ("outline-0", "outline-1")}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    assert [float(row["confidence"]), float(row["confidence 2"])] == sorted(shares.values(), reverse=True)
    assert shares[row["prediction"]] == float(row["confidence"])


def test_broken_images_are_not_in_the_table_and_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a.png"))
    Path("b.png").write_text("no image")
    assert predict(run, "a.png", "b.png", "--csv", "out.csv") == 65
    assert "b.png" in capsys.readouterr().err
    assert [row["path"] for row in table("out.csv")] == ["a.png"]


def test_of_a_run_the_best_checkpoint_answers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a.png"))
    best = run / json.loads((run / "best.json").read_text())["checkpoint"]
    messages = []
    for path in (run, best):
        assert predict(path, "a.png", "--json") == 0
        messages.append(capsys.readouterr().out)
    assert messages[0] == messages[1] != ""


def test_an_exported_model_answers_as_its_run_does(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a.png"), 77)
    assert run_command("export", str(run), "--output", "model") == 0
    capsys.readouterr()
    assert (predict(run, "a.png"), predict("model", "a.png")) == (0, 0)
    of_run, of_export = capsys.readouterr().out.splitlines()
    assert of_run == of_export


def test_an_exported_model_takes_a_batch_size(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a.png"))
    assert run_command("export", str(run), "--output", "model") == 0
    capsys.readouterr()
    assert predict("model", "a.png", "a.png", "a.png", "eval.batch_size=2") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert predict("model", "a.png", "eval.batch_size=0") == 64


OWN = """
from torch import nn

def make(classes, shape, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.Linear(width, classes))
"""


def test_a_network_of_the_users_own_answers_for_a_run_and_its_export_once_he_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "net_of_mine.py").write_text(OWN)
    Path("cfg.yaml").write_text("model: {name: net_of_mine:make, args: {width: 4}}\ndata: {image_size: 8, classes: 2}")
    write_image(Path("a.png"), 77)
    trained(tmp_path / "run", "model.args={width: 4}", "model.name=net_of_mine:make")
    assert run_command("export", "run", "--output", "model", "model.name=net_of_mine:make") == 0
    capsys.readouterr()
    for source in ("run", "model"):
        for named in (["model.name=net_of_mine:make"], ["--config", "cfg.yaml"]):
            assert predict(source, "a.png", *named) == 0
    assert len(set(capsys.readouterr().out.splitlines())) == 1
    sys.modules.pop("net_of_mine")


def test_an_exported_model_takes_no_settings(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a.png"))
    assert run_command("export", str(run), "--output", "model") == 0
    assert predict("model", "a.png", "data.image_size=9") == 64
    assert "data.image_size=9" in capsys.readouterr().err


def test_a_damaged_newer_checkpoint_is_passed_over_with_a_note(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a.png"))
    (run / "best.json").unlink()
    *_, newest = sorted((run / "checkpoints").iterdir())
    flip(newest / "model.safetensors")
    assert predict(run, "a.png") == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err.count("note: ")) == (1, 1)
    assert newest.name in err


def test_a_broken_image_costs_its_own_line_and_the_exit_code(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a.png"))
    Path("b.png").write_bytes(b"no image")
    assert predict(run, "b.png", "a.png") == 65
    out, err = capsys.readouterr()
    assert out.startswith("a.png\t")
    assert "b.png: no image that Pillow knows" in err
    assert "1 of 2 images" in err


@pytest.mark.parametrize("options", [[], ["--json"], ["--csv", "out.csv"], ["--explain", "heat"]], ids=str)
def test_a_batch_of_broken_images_alone_is_counted_like_one_of_them(
    run: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.png", "b.jpg"):
        Path(name).write_bytes(b"no image")
    write_image(Path("c.png"))
    assert predict(run, "a.png", "b.jpg", *options) == 65
    assert "ERROR[65] 2 of 2 images have no answer" in capsys.readouterr().err
    assert predict(run, "a.png", "b.jpg", "c.png", "eval.batch_size=2") == 65
    assert capsys.readouterr().out.startswith("c.png\t")


def test_files_in_a_folder_that_are_not_read_are_counted_at_the_end(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_image(Path("photos/a.png"))
    for name in ("b.txt", "c.txt", "d.heic"):
        Path("photos", name).touch()
    assert predict(run, "photos") == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err.count("\n")) == (1, 1)
    assert err.startswith("note: 3 files are not read: .txt (2), .heic (1)")


def test_the_order_of_classes_that_are_numbers_is_said_by_predict_and_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 13):
        for image in range(2):
            write_image(tmp_path / f"twelve/{number}/{image}.png", 20 * number + image)
    settings = ("data.name=folder", f"data.root={tmp_path}/twelve", "data.classes=12", "data.val_fraction=0")
    trained(tmp_path / "run", *settings)
    assert predict(tmp_path / "run", str(tmp_path / "twelve/1/0.png")) == 0
    assert run_command("export", str(tmp_path / "run"), "--output", str(tmp_path / "model")) == 0
    assert capsys.readouterr().err.count("note: the classes are sorted as text: 1, 10, 11, 12, 2 and 7 more.") == 2


def test_what_is_no_checkpoint_is_one_error_before_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    write_image(Path("a.png"))
    assert predict("gone", "a.png") == 66
    out, err = capsys.readouterr()
    assert (out, err.count("ERROR["), err.count("  fix: ")) == ("", 1, 1)
    assert "does not exist" in err


@pytest.mark.parametrize("images", ["a.png", "photos"])
def test_a_run_after_its_images_is_refused_with_the_words_in_order(
    run: Path, images: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_image(Path("a.png"))
    Path("photos").mkdir()
    assert predict(images, run) == 64
    assert f"train predict {run} {images}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["gone.png"], 66, "gone.png does not exist"),
        ([], 64, "no image to look at"),
        (["a.png", "--top", "0"], 64, "--top"),
        (["a.png", "--device", "tpu"], 64, "--device"),
        (["a.png", "train.epochs=9"], 64, "train.epochs"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_else(
    run: Path, words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_image(Path("a.png"))
    assert predict(run, *words) == code
    out, err = capsys.readouterr()
    assert (out, text in err) == ("", True)


@pytest.mark.slow
def test_it_works_from_a_shell_that_says_it_is_one_of_several_ranks(run: Path) -> None:
    write_image(Path("a.png"))
    several = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "PMI_SIZE": "4", "ACCELERATE_MIXED_PRECISION": "fp16"}
    ended = python("-m", "train", "predict", str(run), "a.png", "--device", "cpu", environ=several)
    assert (ended.returncode, ended.stdout.count("\n"), ended.stderr) == (0, 1, "")


@pytest.mark.slow
def test_a_console_without_umlauts_loses_no_line(run: Path) -> None:
    write_image(Path("ä.png"))
    latin = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **CPU}
    ended = python("-m", "train", "predict", str(run), ".", environ=latin)
    assert (ended.returncode, ended.stdout.isascii()) == (0, True)
    assert re.fullmatch(r"\S+\.png\toutline-\d\t\S+\n", ended.stdout)


@pytest.mark.slow
def test_a_full_disk_below_stdout_is_no_success(run: Path) -> None:
    write_image(Path("a.png"))
    words = ("-m", "train", "predict", str(run), "a.png")
    with Path("/dev/full").open("w") as out:
        ended = python(*words, environ=CPU, capture_output=False, stdout=out, stderr=subprocess.PIPE)
    assert ended.returncode == 74
    assert "could not all be written" in ended.stderr


@pytest.mark.slow
def test_a_reader_that_wants_no_more_is_no_failure(run: Path) -> None:
    write_image(Path("a.png"))
    words = shlex.join([sys.executable, "-m", "train", "predict", str(run), *["a.png"] * 3000])
    line = f"{words} | head -n 1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=200, env={**os.environ, **CPU})
    assert (ended.stdout.splitlines()[-1], ended.stderr) == ("0", "")


def test_asked_to_stop_it_leaves_whole_lines_and_says_that_some_are_missing(run: Path) -> None:
    write_image(Path("a.png"))
    words = [sys.executable, "-m", "train", "predict", str(run), "eval.batch_size=8", *["a.png"] * 20000]
    with Started(words, env={**unmeasured(), **CPU}, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        first = os.read(process.stdout.fileno(), 1).decode()  # it is at work, and stuck soon: nobody reads on
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, "before all images were answered" in err) == (75, True), err
    lines = (first + out).splitlines(keepends=True)
    assert 0 < len(lines) < 20000
    assert all(re.fullmatch(r"a\.png\toutline-\d\t[\d.]+\n", line) for line in lines)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("b.png", "a.JPG", "deep/er/c.png"):
        write_image(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


def names(*words: Path) -> list[str]:
    return [path.name for path in predict_command.find_images([str(word) for word in words])]


def test_a_folder_is_all_images_in_it_and_below(photos: Path) -> None:
    assert names(photos) == ["a.JPG", "b.png", "c.png"]


def test_hidden_images_are_taken_where_they_are_named(photos: Path) -> None:
    copy, strange = (write_image(photos / name) for name in (".checkpoints/b.png", "._b.png"))
    assert names(photos) == ["a.JPG", "b.png", "c.png"]
    assert names(copy.parent, strange) == ["b.png", "._b.png"]


def test_a_file_is_taken_whatever_its_name_in_the_order_of_the_words(photos: Path) -> None:
    assert names(photos / "notes.txt", photos / "b.png", photos / "b.png") == ["notes.txt", "b.png", "b.png"]


def test_a_name_with_bytes_that_are_no_text_is_found(tmp_path: Path) -> None:
    write_image(tmp_path / "x.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.png"))
    assert [os.fsencode(path.name) for path in predict_command.find_images([str(tmp_path)])] == [b"odd\xff.png"]


def test_no_word_is_a_wrong_use() -> None:
    with pytest.raises(Failure, match="no image to look at") as caught:
        predict_command.find_images([])
    assert caught.value.code == 64


def nothing(folder: Path) -> None: ...


def empty(folder: Path) -> None: folder.mkdir()  # fmt: skip


def without_images(folder: Path) -> None: (empty(folder), (folder / "a.txt").write_text("a"))  # fmt: skip


def dead_link(folder: Path) -> None: folder.symlink_to("gone")  # fmt: skip


def circle(folder: Path) -> None: (empty(folder), (folder / "again").symlink_to(folder))  # fmt: skip


@pytest.mark.parametrize("make", [nothing, empty, without_images, dead_link, circle])
def test_what_leads_to_no_image_is_missing(make: object, tmp_path: Path) -> None:
    make(tmp_path / "place")  # type: ignore[operator]
    with pytest.raises(Failure) as caught:
        predict_command.find_images([str(tmp_path / "place")])
    assert caught.value.code == 66
    assert "place" in str(caught.value)


def test_settings_are_told_from_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.root=x").touch()
    words = ["a.png", "data.root=x", "data.root=y", "a=b.png"]
    assert predict_command.split_images_and_settings(words) == (["a.png", "data.root=x", "a=b.png"], ["data.root=y"])
