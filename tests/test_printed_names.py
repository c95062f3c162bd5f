"""A name that holds a terminal's commands or line breaks clears no console, and adds no line to console or log."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from images import write_image
from inference import evaluate_run, run_command
from jobs import TINY
from processes import python
from safetensors.torch import save_file

from train.config import load
from train.data.preprocessing import DEFAULT_PREPROCESSING
from train.data.shape import Shape
from train.models import registry
from train.models.pretrained import RECORD_KEY

FORGED = "epoch 9: val accuracy 100.00%"
NAME = f"cat\r\n{FORGED}\x1b[2J\x1b[1;1H\x9b31m\x7f\u2028\u202e"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
FOLDER = ("--device", "cpu", "data.name=folder", "data.root=photos", "run.output_dir=.", "run.name=run")
SETTINGS = (*(word for word in TINY if not word.startswith("data.")), "data.image_size=8")


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """Class folders, of which one has the name, as one image of each has; one of them is broken."""
    for split, number in (("train", 24), ("val", 4)):
        for label, folder in enumerate((NAME, "dog")):
            for value in range(number):
                write_image(tmp_path / "photos" / split / folder / f"{value}.png", 100 * label + value)
            write_image(tmp_path / "photos" / split / folder / f"{NAME}.png", 100 * label + 50)
    (tmp_path / "photos" / "train" / "dog" / f"{NAME}.jpg").write_bytes(b"no image")
    return tmp_path


def run(workdir: Path, *words: str, module: str = "train") -> subprocess.CompletedProcess[str]:
    done = python("-m", module, *words, cwd=workdir)
    refuse_forgery(done.stdout + done.stderr)
    return done


def refuse_forgery(text: str) -> None:
    assert CONTROL.findall(text) == [], text
    assert [line for line in text.splitlines() if line.strip().startswith(FORGED)] == [], text


def test_a_training_and_its_evaluation_print_no_name_as_a_line(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = run(workdir, *FOLDER, *SETTINGS, "data.max_bad_images=1", "train.max_steps=2")
    assert trained.returncode == 0, trained.stderr
    assert "skipped a broken image" in trained.stdout + trained.stderr
    assert "\\x1b[2J" in trained.stdout + trained.stderr
    for log in (workdir / "run" / "logs").glob("rank-*.log"):
        refuse_forgery(log.read_text())
    measured = run(workdir, "eval", "run")
    assert (measured.returncode, "cat\\r\\nepoch 9" in measured.stdout) == (0, True), measured.stderr
    evaluate_run(workdir / "run", f"data.root={workdir / 'photos'}", per_image=workdir / "t.csv")
    refuse_forgery(as_json := capsys.readouterr().out)
    assert json.loads(as_json)["classes"] == [NAME, "dog"]
    assert NAME.encode() in (workdir / "t.csv").read_bytes()


def test_data_commands_and_refusals_print_no_name_as_a_line(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checked = run(workdir, "data", "check", *FOLDER[2:4])
    assert (checked.returncode, "\\x1b[2J" in checked.stdout, "\\x1b[2J" in checked.stderr) == (65, True, True)
    assert run_command("data", "check", "--json", "data.name=folder", f"data.root={workdir / 'photos'}") == 65
    refuse_forgery(as_json := capsys.readouterr().out)
    assert json.loads(as_json)["ok"] is False
    assert run(workdir, *FOLDER, *SETTINGS).returncode == 65
    (workdir / "t.csv").write_text(f'path,label\nphotos/train/dog/0.png,"{NAME}"\nx.png,dog\n', newline="")
    assert run(workdir, "check", "--device", "cpu", "data.name=table", "data.root=t.csv").returncode in (0, 65, 66)
    assert run(workdir, NAME).returncode == 64
    assert run(workdir, f"run.name={NAME}").returncode == 64
    assert run(workdir, "--config", NAME).returncode == 66


@pytest.mark.parametrize("command", ["show", "doctor"])
def test_the_launcher_prints_no_variable_as_a_line(tmp_path: Path, command: str) -> None:
    variables = {
        "MASTER_ADDR": NAME,
        "HTTP_PROXY": NAME,
        "NCCL_SOCKET_IFNAME": NAME,
        "MASTER_PORT": "1",
    }
    done = python("-m", "entrypoint", command, "--device", "cpu", cwd=tmp_path, environ=variables)
    refuse_forgery(done.stdout + done.stderr)
    assert done.stdout + done.stderr != ""


def test_what_a_library_writes_past_python_is_escaped_on_console_and_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import os\nfrom torch import nn\n\n\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes, **options):\n"
        "        super().__init__(nn.Flatten(), nn.LazyLinear(classes))\n"
        "        os.write(2, b'lib: caf\\xe9 \\xc3\\xa9 \\x1b[2J\\xc2\\x9b\\n')\n"
    )
    words = ["model.name=own:Net", *(word for word in TINY if "width" not in word), "train.max_steps=1"]
    done = python("-m", "train", "--device", "cpu", "run.output_dir=.", "run.name=run", *words, cwd=tmp_path)
    for text in (done.stdout + done.stderr, (tmp_path / "run" / "logs" / "rank-0000.log").read_text()):
        assert "lib: caf\\xe9 é \\x1b[2J\\x9b" in text


def test_the_programs_of_a_user_keep_their_output(tmp_path: Path) -> None:
    """`entrypoint run` passes on what it is given: colours and bars of a foreign program are its own."""
    command = ["run", "--device", "cpu", "--procs-per-node", "1", "--", "printf", "\\033[32mgreen\\033[0m\\n"]
    assert "\x1b[32mgreen\x1b[0m\n" in python("-m", "entrypoint", *command, cwd=tmp_path).stdout


def test_the_name_in_a_weights_file_is_no_line(tmp_path: Path) -> None:
    model = load.load_config(None, ["model.args.width=4"]).model
    network = registry.build_model(model, classes=2, shape=Shape(channels=3, size=(8, 8)), seed=0)
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    record = {"name": NAME, "preprocessing": asdict(DEFAULT_PREPROCESSING), "image_size": [8, 8], "classes": 2}
    save_file(tensors, tmp_path / "w.safetensors", metadata={RECORD_KEY: json.dumps(record)})
    words = ("--device", "cpu", "run.output_dir=.", "run.name=run", *TINY, "train.max_steps=1")
    done = run(tmp_path, *words, "model.weights=w.safetensors")
    assert (done.returncode, "cat\\x0d\\nepoch 9" in done.stdout + done.stderr) == (0, True), done.stdout + done.stderr
