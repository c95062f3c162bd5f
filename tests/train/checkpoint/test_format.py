"""A checkpoint appears whole or not at all, and only a whole one is ever loaded."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from checkpoints import DAMAGES, flip, hidden, plant, reseal, saved, weight
from disks import mounted
from torch import nn

from entrypoint import ExitCode, Failure
from train.checkpoint import format, manifest, store

TENSORS = {
    "fp32": torch.tensor([1.0, -0.0, 1e-45]),
    "bf16": torch.tensor([1.5], dtype=torch.bfloat16),
    "int64": torch.tensor([2**62]),
    "no dimension": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "channels last": torch.rand(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "a parameter": nn.Parameter(torch.rand(3)),
    "a slice": torch.rand(4, 4)[:, 1],
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS.keys())
def test_a_tensor_comes_back_with_its_bits_type_and_shape(tmp_path: Path, tensor: torch.Tensor) -> None:
    format.save_checkpoint(tmp_path, step=1, tensors={"model": {"layer.w": tensor}}, metadata={}, keep=1)
    committed = store.newest_checkpoint(tmp_path)
    assert committed
    back = format.load_checkpoint(committed)[0]["model"]["layer.w"]
    assert torch.equal(back, tensor)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {"epoch": 3, "lr": 0.1 + 0.2, "best": float("-inf"), "name": "Zoë", "none": None, "list": [1, [2]]}
    format.save_checkpoint(tmp_path, step=1, tensors={}, metadata=state, keep=1)
    committed = store.newest_checkpoint(tmp_path)
    assert committed
    assert format.load_checkpoint(committed) == ({}, state)


def test_tied_weights_are_kept(tmp_path: Path) -> None:
    tied = torch.rand(3)
    format.save_checkpoint(tmp_path, step=1, tensors={"model": {"a": tied, "b": tied}}, metadata={}, keep=1)
    assert format.load_checkpoint(store.checkpoint_at_step(tmp_path, 1))[0]["model"].keys() == {"a", "b"}


def test_what_is_saved_does_not_change_with_the_model_afterwards(tmp_path: Path) -> None:
    weights = torch.ones(2)
    format.save_checkpoint(tmp_path, step=1, tensors={"model": {"w": weights}}, metadata={}, keep=1)
    weights.zero_()
    assert weight(tmp_path) == (1, 1.0)


def test_a_network_whose_layout_has_versions_takes_the_tensors_of_a_checkpoint() -> None:
    net, other = torchvision.models.mnasnet0_5(num_classes=2), torchvision.models.mnasnet0_5(num_classes=2)
    format.restore_network(other, dict(net.state_dict()))
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in net.state_dict().items())


def test_there_is_nothing_to_resume_from_in_a_new_folder(tmp_path: Path) -> None:
    assert store.newest_checkpoint(tmp_path / "checkpoints") is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-00000030"]


def test_saving_the_same_again_writes_nothing(tmp_path: Path) -> None:
    before = (saved(tmp_path, 10) / "manifest.json").stat()
    after = (saved(tmp_path, 10) / "manifest.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_another_content_for_a_step_replaces_it(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    saved(tmp_path, 10, value=5.0)
    assert weight(tmp_path) == (10, 5.0)
    assert hidden(tmp_path) == []


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    flip(saved(tmp_path, 10) / "model.safetensors")
    saved(tmp_path, 10)
    assert weight(tmp_path) == (10, 10.0)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_any_damage_to_a_checkpoint_is_noticed(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    """The search passes over it and gives the reason. Elsewhere one damage shows that a reader of checkpoints asks."""
    saved(tmp_path, 20, 30)
    damage(tmp_path / "step-00000030")
    committed = store.newest_checkpoint(tmp_path)
    assert committed
    assert committed.step == 20
    skipped = [text.removeprefix("skipped a damaged checkpoint: ").split(":")[0] for text in committed.notes]
    assert skipped in (["step-00000030"], ["step-00000031"])


def test_when_all_are_damaged_the_reasons_are_told(tmp_path: Path) -> None:
    for step in (20, 30):
        flip(saved(tmp_path, step) / "model.safetensors")
    with pytest.raises(Failure, match="no checkpoint") as caught:
        store.newest_checkpoint(tmp_path)
    assert caught.value.code == ExitCode.DATA
    assert str(caught.value.found).count("model.safetensors does not match its hash") == 2


def test_a_newer_version_s_checkpoint_is_not_passed_over(tmp_path: Path) -> None:
    saved(tmp_path, 20, 30)
    reseal(tmp_path / "step-00000030", format=2)
    with pytest.raises(Failure, match="newer version"):
        store.newest_checkpoint(tmp_path)


def test_a_link_in_a_checkpoint_ends_the_start(tmp_path: Path) -> None:
    path = saved(tmp_path, 20, 30)
    (path / "model.safetensors").rename(tmp_path / "elsewhere")
    (path / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure, match="symbolic link") as caught:
        store.newest_checkpoint(tmp_path)
    assert caught.value.code == ExitCode.SECURITY


def test_nothing_is_saved_through_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    for write in (lambda: saved(tmp_path / "checkpoints", 10), lambda: format.prepare_folder(tmp_path / "checkpoints")):
        with pytest.raises(Failure, match="symbolic link"):
            write()
    assert list((tmp_path / "elsewhere").iterdir()) == []


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def test_a_crafted_pickle_for_weights_is_refused_and_not_executed(tmp_path: Path) -> None:
    plant(saved(tmp_path, 30), "model.safetensors", pickle.dumps(Bomb(tmp_path / "boom")))
    with pytest.raises(Failure, match="damaged"):
        format.load_checkpoint(store.checkpoint_at_step(tmp_path, 30))
    assert not (tmp_path / "boom").exists()


def test_a_crafted_pickle_beside_the_weights_is_not_looked_at(tmp_path: Path) -> None:
    plant(saved(tmp_path, 30), "optimizer.pt", pickle.dumps(Bomb(tmp_path / "boom")))
    assert format.load_checkpoint(store.checkpoint_at_step(tmp_path, 30))[0].keys() == {"model"}
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("state", [b"[" * 100_000, b"{", b"\xff"], ids=["deeply nested", "half", "not text"])
def test_a_crafted_state_is_refused(tmp_path: Path, state: bytes) -> None:
    plant(saved(tmp_path, 30), "state.json", state)
    with pytest.raises(Failure, match="damaged"):
        format.load_checkpoint(store.checkpoint_at_step(tmp_path, 30))


def test_damage_after_the_search_is_noticed_while_loading(tmp_path: Path) -> None:
    path = saved(tmp_path, 30)
    committed = store.newest_checkpoint(tmp_path)
    assert committed
    flip(path / "model.safetensors")
    with pytest.raises(Failure, match=r"step-00000030 is damaged") as caught:
        format.load_checkpoint(committed)
    assert caught.value.code == ExitCode.DATA


def test_a_rank_that_is_told_the_step_finds_the_same_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 20, 30)
    assert store.checkpoint_at_step(tmp_path, 20).path.name == "step-00000020"


def test_a_rank_that_is_told_the_step_reads_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 20)
    opened, read = manifest.open_file, list[str]()
    monkeypatch.setattr(manifest, "open_file", lambda folder, name: (read.append(name), opened(folder, name))[1])
    format.load_checkpoint(store.checkpoint_at_step(tmp_path, 20))
    assert sorted(read) == ["manifest.json", "model.safetensors", "state.json"]


def test_a_rank_that_is_told_a_missing_step_says_so(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"step-00000020 is damaged"):
        store.checkpoint_at_step(tmp_path, 20)


IMPORTS = """
import sys, pathlib, torch
from train.checkpoint import format, store
before = set(sys.modules)
folder = pathlib.Path(sys.argv[1])
format.save_checkpoint(folder, step=1, tensors={"model": {"w": torch.ones(2)}}, metadata={}, keep=1)
format.load_checkpoint(store.newest_checkpoint(folder))
print(*(set(sys.modules) - before))
"""


def test_saving_imports_nothing_that_was_not_there_before_training(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IMPORTS, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.split() == []


def test_preparing_sweeps_rehearses_and_leaves_what_is_there(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    (tmp_path / ".tmp-step-00000020-abcd").mkdir()
    assert format.prepare_folder(tmp_path) == [".tmp-step-00000020-abcd"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_preparing_a_read_only_disk_is_an_unusable_output(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "ro") as disk, pytest.raises(Failure) as told:
        format.prepare_folder(disk / "checkpoints")
    assert told.value.code == ExitCode.OUTPUT
