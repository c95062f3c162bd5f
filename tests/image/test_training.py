"""Whole trainings in containers: as a user starts them, shut in as far as a site may, stopped, on a hostile host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from bed import until
from containers import Ended, Image, mounted, writable
from PIL import Image as Picture

pytestmark = pytest.mark.timeout(600)  # the first one may have to build the image

SHORT = ("data.samples=600", "train.max_steps=2", "train.global_batch_size=64")
SHUT_IN = ("--read-only", "--cap-drop=ALL", "--user=54321:54321")
CONFIG = """
run: {name: mounted}
data: {name: folder, root: /data, image_size: 16}
train: {epochs: 2, global_batch_size: 16}
"""


def folders_of_images(root: Path) -> Path:
    """Three classes of 24 small pictures each."""
    chance = np.random.default_rng(0)
    for name, color in {"red": 0, "green": 1, "blue": 2}.items():
        (root / name).mkdir(parents=True)
        for number in range(24):
            pixels = chance.integers(0, 80, (16, 16, 3), np.uint8)
            pixels[:, :, color] += 150
            Picture.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def committed(run: Path) -> list[Path]:
    """The checkpoints with a manifest."""
    return sorted(path.parent for path in run.glob("checkpoints/step-*/manifest.json"))


def well(ended: Ended) -> bool:
    """It ended well, and nothing worried it."""
    return ended.code == 0 and ended.lines("WARNING") == []


def test_no_words_train_the_quickstart(image: Image) -> None:
    with image.started() as container:
        until(lambda: "epoch 1/5" in container.output(), 200, container.output)
        assert container.stop().code == 75


def test_the_images_own_python_times_the_lines_of_the_loop(image: Image, tmp_path: Path) -> None:
    work = writable(tmp_path / "work")
    options = (mounted(work, "/workspace"),)
    ended = image.run("train", "--profile-lines", "run.name=timed", *SHORT, options=options)
    assert well(ended), ended.output
    assert "Trainer.train_step" in (work / "runs/timed/profile/rank-0000-lines.txt").read_text()


@pytest.mark.every_run
def test_a_mounted_configuration_trains_on_mounted_data(image: Image, tmp_path: Path) -> None:
    data, work = folders_of_images(tmp_path / "data"), writable(tmp_path / "work")
    (work / "cfg.yaml").write_text(CONFIG)
    places = (mounted(data, "/data") + ":ro", mounted(work, "/workspace"))
    ended = image.run("train", "--config", "cfg.yaml", options=places)
    assert well(ended), ended.output
    assert committed(work / "runs" / "mounted")


def test_two_processes_meet_without_a_network(image: Image, tmp_path: Path) -> None:
    place = mounted(writable(tmp_path / "work"), "/workspace")
    ended = image.run("--device", "cpu", "--procs-per-node", "2", *SHORT, options=(place,))
    assert well(ended), ended.output
    assert "2 ranks" in ended.output


def test_a_container_that_may_do_nothing_trains_into_a_mounted_folder(image: Image, tmp_path: Path) -> None:
    work = writable(tmp_path / "work")
    ended = image.run(*SHORT, options=(*SHUT_IN, mounted(work, "/workspace")))
    assert well(ended), ended.output
    assert committed(work / "runs" / "quickstart")


def test_a_container_that_may_do_nothing_trains_without_any_mounted_folder(image: Image) -> None:
    # podman would mount a writable /tmp where docker does not
    bare = ("--read-only-tmpfs=false",) if image.engine == "podman" else ()
    ended = image.run(*SHORT, options=(*SHUT_IN, *bare))
    assert ended.code == 0, ended.output
    assert ["docker run -v" in line for line in ended.lines("WARNING")] == [True]


def test_root_who_can_write_without_any_mounted_folder_is_warned(image: Image) -> None:
    ended = image.run(*SHORT, options=("--user=0",))
    assert ended.code == 0, ended.output
    assert ["/workspace/runs is in the container" in line for line in ended.lines("WARNING")] == [True], ended.output


@pytest.mark.every_run
def test_stopping_a_container_saves_and_says_so(image: Image, tmp_path: Path) -> None:
    work = writable(tmp_path / "work")
    run = work / "runs" / "quickstart"
    with image.started("train.epochs=1000", "log.every_steps=1", options=(mounted(work, "/workspace"),)) as container:
        until(lambda: "step" in text(run / "metrics.jsonl"), 120, container.output)
        ended = container.stop()
    assert ended.code == 75, ended.output
    assert json.loads(text(run / "errors" / "exit.json"))["code"] == 75
    assert committed(run)


def text(path: Path) -> str:
    """What is in the file, if it is there yet."""
    return path.read_text() if path.exists() else ""


FOREIGN = """
run: {name: läufe 実行, output_dir: ausgabe-größe}
data: {name: folder, root: /data/bilder-画像, image_size: 16, max_bad_images: 1}
train: {epochs: 1, global_batch_size: 16}
"""


@pytest.fixture(scope="module")
def foreign(image: Image, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """A training whose paths are not ASCII, under a locale that is; one file's name is no text at all."""
    data, work = tmp_path_factory.mktemp("data"), writable(tmp_path_factory.mktemp("there") / "work")
    root = folders_of_images(data / "bilder-画像")
    (root / "red").rename(root / "rot-å")
    Path(os.fsdecode(os.fsencode(root / "blue") + b"/no-text-\xff.png")).write_bytes(b"broken")
    (work / "größe-設定.yaml").write_text(FOREIGN)
    places = (mounted(data, "/data") + ":ro", mounted(work, "/workspace"))
    data.chmod(0o755)
    return image.run("train", "--config", "größe-設定.yaml", options=(*places, *ASCII)), work


ASCII = ("--env=LC_ALL=C", "--env=LANG=C", "--env=PYTHONUTF8=0")


def test_paths_that_are_not_ascii_work_under_an_ascii_locale(foreign: tuple[Ended, Path]) -> None:
    ended, work = foreign
    assert ended.code == 0, ended.output
    assert committed(work / "ausgabe-größe" / "läufe 実行")


def test_they_are_shown_as_they_are(foreign: tuple[Ended, Path]) -> None:
    assert "ausgabe-größe/läufe 実行" in foreign[0].output


def test_a_file_whose_name_is_no_text_is_skipped_by_name(foreign: tuple[Ended, Path]) -> None:
    assert "no-text-" in foreign[0].output


def test_python_modules_of_the_host_stay_outside_and_are_named(image: Image, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('imported from the host')")
    (tmp_path / "sitecustomize.py").write_text("print('imported from the host')")
    leaks = (mounted(tmp_path, "/evil"), "--env=PYTHONPATH=/evil")
    ended = image.run(*SHORT, options=leaks)
    assert (ended.code, "from the host" in ended.output) == (0, False), ended.output
    assert "PYTHONPATH" in ended.output
