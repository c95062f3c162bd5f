"""Every command that the program prints works when it is typed: a shell runs it that knows no more than its user."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
PROGRAM = Path(sys.executable).with_name("train")
# Neither the environment's programs nor its Python are in PATH.
ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), "OMP_NUM_THREADS": "1"}
SMALL = "data.image_size=16 train.epochs=1 train.global_batch_size=8 log.tensorboard=false"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=ENVIRON, capture_output=True, text=True, timeout=300, check=False
    )


def run(line: str, folder: Path) -> dict[str, str]:
    """Run a line of the user's; the commands that it printed, by their labels."""
    done = shell(line, folder)
    assert done.returncode == 0, done.stderr
    printed = re.findall(
        r"^(report|predict|evaluate|continue|train on them|next): +(.*)$", done.stdout + done.stderr, re.M
    )
    return dict(printed)


def works(command: str, folder: Path) -> str:
    """Its output."""
    done = shell(command, folder)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with a space and brackets, and images in class folders with such names too."""
    folder = tmp_path / "my work (1)"
    for number in range(16):
        for grade, name in enumerate(("cat's", "dog & co")):
            path = folder / "my photos" / name / f"{number} x.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (100 * grade + 5 * number, 0, 9)).save(path)
    (folder / "my cfg.yaml").write_text("data: {name: folder, root: my photos}\n")
    return folder


@pytest.mark.slow
def test_the_lines_after_a_training_on_photos(folder: Path) -> None:
    printed = run(f"{PROGRAM} --device cpu --config 'my cfg.yaml' {SMALL}", folder)
    assert list(printed) == ["report", "predict", "continue"]
    works(printed["report"], folder)
    assert "my photos/" in works(f"{printed['predict']} --device cpu", folder)
    works(printed["continue"], folder)
    again = run(f"{PROGRAM} eval --device cpu --report 'runs/my cfg'", folder)
    works(again["next"], folder)


@pytest.mark.slow
def test_the_lines_after_the_quickstart_name_no_images_that_nobody_has(tmp_path: Path) -> None:
    printed = run(f"{PROGRAM} --device cpu {SMALL} data.samples=100", tmp_path)
    assert list(printed) == ["report", "evaluate", "continue"]
    works(f"{printed['evaluate']} --device cpu", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["my_model", "my_dataset"])
def test_the_line_that_predicts_names_code_of_ones_own(example: str, folder: Path) -> None:
    for path in (ROOT / "examples").glob(f"{example}.*"):
        shutil.copy(path, folder)
    printed = run(f"{PROGRAM} --device cpu --config {example}.yaml train.epochs=1", folder)
    assert shlex.split(printed["predict"])[-2:] == ["--config", f"{example}.yaml"]
    works(printed["predict"].replace("IMAGES", "'my photos'") + " --device cpu", folder)


@pytest.mark.slow
def test_the_line_after_packing_trains_on_the_shards_with_the_same_config(folder: Path) -> None:
    (folder / "labels.csv").write_text(
        "file,grade\n" + "".join(f"my photos/cat's/{number} x.png,{number % 2}\n" for number in range(16))
    )
    (folder / "table.yaml").write_text(
        "data: {name: table, root: labels.csv, columns: {path: file, label: grade}}\nrun: {seed: 3}\n"
    )
    words = SMALL.replace("data.image_size=16 ", "")
    printed = run(f"{PROGRAM} data pack --config table.yaml data.image_size=16 {words} --output 'my shards'", folder)
    command = printed["train on them"]
    assert "--config table.yaml" in command
    works(command.replace(" --config", " check --config"), folder)


@pytest.mark.slow
def test_the_line_after_packing_trains_also_where_the_config_has_a_run_on_the_files(folder: Path) -> None:
    run(f"{PROGRAM} --device cpu --config 'my cfg.yaml' {SMALL}", folder)
    printed = run(f"{PROGRAM} data pack --config 'my cfg.yaml' --output shards", folder)
    works(f"{printed['train on them']} --device cpu {SMALL}", folder)


@pytest.mark.slow
def test_a_fix_that_is_a_command_mends_it(folder: Path) -> None:
    run(f"{PROGRAM} data pack 'my photos' --output 'my shards'", folder)
    (folder / "my shards" / "index.json").unlink()
    refused = shell(f"{PROGRAM} check data.name=shards 'data.root=my shards'", folder)
    assert refused.returncode == 66
    fix = re.search(r"fix: (.*)", refused.stderr)
    assert fix is not None
    works(fix[1], folder)
    works(f"{PROGRAM} check data.name=shards 'data.root=my shards' {SMALL}", folder)


def test_entrypoint_run_takes_the_python_of_its_own_environment(tmp_path: Path) -> None:
    own = PROGRAM.with_name("entrypoint")
    line = f"{own} run --device cpu --procs-per-node 1 -- python -c 'import sys; print(sys.prefix)'"
    done = shell(line, tmp_path)
    assert done.stdout.strip() == sys.prefix
    assert "note: python is " in done.stderr


LOST = (
    "check",
    "where",
    "--help",
    "--version",
    "check --help",
    "weights --help",
    "data fetch data.name=nothing --help",
)


@pytest.mark.parametrize("words", LOST)
def test_a_result_that_cannot_be_written_is_an_error(words: str, tmp_path: Path) -> None:
    done = shell(f"{PROGRAM} {words} >/dev/full", tmp_path)
    assert (done.returncode, "could not all be written" in done.stderr) == (74, True)


def test_so_is_one_of_entrypoint(tmp_path: Path) -> None:
    for words in ("show", "job-script multigpu", "show --help"):
        assert shell(f"{PROGRAM.with_name('entrypoint')} {words} >/dev/full", tmp_path).returncode == 74


@pytest.mark.slow
def test_a_training_does_not_end_for_its_console_and_an_evaluation_says_that_its_result_is_lost(tmp_path: Path) -> None:
    assert shell(f"{PROGRAM} --device cpu {SMALL} data.samples=100 >/dev/full", tmp_path).returncode == 0
    assert shell(f"{PROGRAM} eval --device cpu runs/quickstart >/dev/full", tmp_path).returncode == 74
    assert shell(f"{PROGRAM} check | head -1; exit ${{PIPESTATUS[0]}}", tmp_path).returncode == 0
