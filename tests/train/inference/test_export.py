"""An export is there as a whole or not at all, and never in place of something else."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from jobs import trained
from processes import python
from safetensors.torch import load_file

from entrypoint import Failure, file_writer
from train import file_lock, files
from train.inference import checkpoints, evaluate, export


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    trained(folder)
    return folder


def to(run: Path, folder: Path) -> None:
    found = checkpoints.choose_checkpoint(str(run))
    config, _ = checkpoints.load_config(found, None, ())
    export.export_model(config, found, folder)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("there", [False, True])
def test_a_new_or_empty_folder_gets_four_files_and_nothing_else_is_left(run: Path, tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "above" / "model"
    if there:
        folder.mkdir(parents=True)
    to(run, folder)
    assert names(folder) == ["README.md", "model.json", "model.py", "model.safetensors"]
    assert names(folder.parent) == ["model"]


def test_the_weights_are_the_checkpoints_in_the_order_in_which_they_are_written_down(run: Path, tmp_path: Path) -> None:
    to(run, tmp_path / "model")
    written = load_file(tmp_path / "model" / export.WEIGHTS_FILE)
    measured = evaluate.load_weights(checkpoints.choose_checkpoint(str(run))).tensors
    assert written.keys() == measured.keys()
    assert all(torch.equal(tensor, measured[name]) and tensor.is_contiguous() for name, tensor in written.items())


def test_the_description_tells_what_the_network_takes_and_how_it_was_trained(run: Path, tmp_path: Path) -> None:
    to(run, tmp_path / "model")
    told = json.loads((tmp_path / "model" / export.DESCRIPTION_FILE).read_text())
    assert told["input"] == {
        "channels": 3,
        "size": [8, 8],
        "numbers": "uint8",
        "normalization": {"subtract": 127.5, "divide": 63.75},
        "made": "files",
        "name": "images",
        "dtype": "float32",
        "layout": "NCHW",
        "shape": ["batch", 3, 8, 8],
        "preprocessing": {
            "mean": [0.5],
            "std": [0.25],
            "crop_ratio": 1.0,
            "interpolation": "bilinear",
            "fit": "crop",
            "decode": "auto",
        },
    }
    assert told["output"] == {"name": "logits", "dtype": "float32", "shape": ["batch", 2]}
    assert told["files"] == {}
    assert (told["name"], told["args"], told["classes"]) == ("small_cnn", {"width": 4}, ["outline-0", "outline-1"])
    assert told["config"]["train"]["global_batch_size"] == 16


def a_file(folder: Path) -> None: folder.write_text("mine")  # fmt: skip


def a_dead_link(folder: Path) -> None: folder.symlink_to("gone")  # fmt: skip


def not_empty(folder: Path) -> None: (folder.mkdir(), (folder / "mine").write_text("mine"))  # fmt: skip


@pytest.mark.parametrize("make", [a_file, a_dead_link, not_empty])
def test_nothing_is_overwritten(run: Path, tmp_path: Path, make: object) -> None:
    make(tmp_path / "model")  # type: ignore[operator]
    before = os.stat(tmp_path / "model", follow_symlinks=False).st_mtime_ns
    with pytest.raises(Failure, match="is not empty") as caught:
        to(run, tmp_path / "model")
    assert caught.value.code == 73
    assert os.stat(tmp_path / "model", follow_symlinks=False).st_mtime_ns == before


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_disk_that_fills_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, there: bool
) -> None:
    real, calls = file_writer.open_new_file, list[Path]()

    def create(path: Path) -> int:
        calls.append(path)
        if len(calls) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path)

    monkeypatch.setattr(file_writer, "open_new_file", create)
    folder = tmp_path / "place" / "model"
    (folder if there else folder.parent).mkdir(parents=True)
    with pytest.raises(Failure) as caught:
        to(run, folder)
    assert (caught.value.code, "--output" in caught.value.fix, len(calls)) == (74, True, number)
    assert (names(folder.parent), there and names(folder)) == (["model"] if there else [], [] if there else False)


def test_what_somebody_else_put_there_meanwhile_stays(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = tmp_path / "model", files.write_atomic

    def write(path: Path, data: bytes) -> None:
        real(path, data)
        if path.name == export.DESCRIPTION_FILE:
            not_empty(folder)

    monkeypatch.setattr(files, "write_atomic", write)
    with pytest.raises(Failure, match="is not empty"):
        to(run, folder)
    assert (names(tmp_path), names(folder)) == (["model"], ["mine"])


KILLED = """
import os, sys
from entrypoint import file_writer
from train import __main__ as front
real, calls = file_writer.open_new_file, []
def create(path):
    calls.append(path)
    if len(calls) == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
    return real(path)
file_writer.open_new_file = create
front.run_command(["export", sys.argv[1], "--output", sys.argv[2]], os.environ)
"""


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("number", [1, 3])
def test_what_a_killed_export_left_is_removed_by_the_next_one(
    run: Path, tmp_path: Path, number: int, there: bool
) -> None:
    folder = tmp_path / "above" / "model"
    (folder if there else folder.parent).mkdir(parents=True)
    assert python("-c", KILLED, str(run), str(folder), str(number)).returncode == -9
    assert names(folder.parent) != ["model"] or names(folder) != []
    to(run, folder)
    assert (names(folder.parent), len(names(folder))) == (["model"], 4)


def test_an_export_that_another_process_writes_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    lock = file_lock.acquire_lock(tmp_path / "model" / export.LOCK_NAME)
    assert lock is not None
    with lock.held(), pytest.raises(Failure, match="another process writes") as caught:
        to(run, tmp_path / "model")
    assert (caught.value.code, f"process {os.getpid()} on " in str(caught.value.found)) == (73, True)
    assert names(tmp_path / "model") == []


def test_a_complete_export_is_no_leftover(run: Path, tmp_path: Path) -> None:
    to(run, tmp_path / "model")
    lock = tmp_path / "model" / f"{export.LOCK_NAME}.1"
    ended = asdict(file_lock.this_process_as_holder()) | {"began": "0"}
    lock.write_text(json.dumps(ended))
    with pytest.raises(Failure, match="is not empty"):
        to(run, tmp_path / "model")
    assert "model.json" in names(tmp_path / "model")


def test_a_folder_name_as_long_as_the_system_allows_is_exported(run: Path, tmp_path: Path) -> None:
    to(run, tmp_path / ("m" * 255))
    assert os.listdir(tmp_path) == ["m" * 255]
