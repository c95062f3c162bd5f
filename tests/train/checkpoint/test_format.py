"""A checkpoint appears whole or not at all, only a whole one is ever loaded, and it holds every bit."""

from __future__ import annotations

import errno
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # the first optimizer imports it, and it sets a variable that a test may not leave behind
import torchvision
from calls import fail, intercepted
from checkpoints import DAMAGES, flip, hidden, plant, reseal, saved, weight
from disks import fill, mounted
from processes import python
from safetensors.torch import load
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train.checkpoint import format, manifest, store
from train.checkpoint.format import pack_state, unpack_state

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
    with mounted(tmp_path / "disk", "ro") as disk, pytest.raises(Failure) as caught:
        format.prepare_folder(disk / "checkpoints")
    assert caught.value.code == ExitCode.OUTPUT


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_an_error_in_any_system_call_of_a_save_leaves_a_valid_checkpoint(tmp_path: Path, number: int) -> None:
    for call in count(1):
        folder = tmp_path / str(call)
        saved(folder, 10)
        with intercepted(fail(call, number)) as made:
            failure = failure_of(lambda folder=folder: saved(folder, 20, keep=1))
        if len(made) < call:
            break
        assert weight(folder) in ([(20, 20.0)] if failure is None else [(10, 10.0), (20, 20.0)])
        assert failure is None or (failure.code, failure.kept) == (ExitCode.IO, str(folder / "step-00000010"))
        format.prepare_folder(folder)
        assert hidden(folder) == []
    assert call > 20


def failure_of(action: Callable[[], Any]) -> Failure | None:
    try:
        action()
    except Failure as failure:
        return failure
    return None


# The first open only asks whether the step is there already.
@pytest.mark.parametrize(("call", "at"), [("mkdir", 1), ("open", 2), ("write", 1), ("fsync", 1), ("rename", 1)])
def test_a_save_that_fails_before_its_commit_leaves_no_trace(tmp_path: Path, call: str, at: int) -> None:
    saved(tmp_path, 10)
    with intercepted(fail(at, errno.ENOSPC, name=call)), pytest.raises(Failure):
        saved(tmp_path, 20)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_everything_is_on_the_disk_before_the_folder_gets_its_name_and_the_name_after(tmp_path: Path) -> None:
    order: list[str] = []

    def note(_: int, name: str, arguments: tuple[Any, ...]) -> None:
        order.extend([name] if name in ("write", "fsync", "rename") else [])

    with intercepted(note):
        saved(tmp_path, 10)
    files = ["write", "fsync"] * 3  # model, state, manifest
    assert order == [*files, "rename", "fsync", "rename", "fsync"]  # manifest and its folder, folder and its parent


def test_an_fsync_error_of_the_last_folder_is_told(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    with intercepted(lambda *_: None) as made:
        saved(tmp_path, 20)
    with intercepted(fail(made.count("fsync"), errno.EIO, name="fsync")), pytest.raises(Failure) as caught:
        saved(tmp_path, 30)
    assert caught.value.code == ExitCode.IO


def test_a_file_server_that_renamed_but_lost_its_answer_is_believed_after_a_look(tmp_path: Path) -> None:
    folders = []

    def rename_then_fail(_: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "rename" and Path(arguments[0]).is_dir() and not folders:
            folders.append(Path(arguments[0]).replace(arguments[1]))
            raise OSError(errno.ESTALE, "stale")

    with intercepted(rename_then_fail):
        saved(tmp_path, 10)
    assert folders
    assert weight(tmp_path) == (10, 10.0)


def test_a_full_disk_keeps_the_last_checkpoint_and_names_it(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=256k") as disk:
        saved(disk / "checkpoints", 10)
        fill(disk, leave=8192)
        with pytest.raises(Failure) as caught:
            saved(disk / "checkpoints", 20)
        assert weight(disk / "checkpoints") == (10, 10.0)
        assert hidden(disk) == []
    assert caught.value.code == ExitCode.IO
    assert "No space left on device" in str(caught.value.found)
    assert caught.value.kept == str(disk / "checkpoints" / "step-00000010")


def test_a_save_that_does_not_fit_fails_before_it_writes_anything(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=256k") as disk:
        saved(disk / "checkpoints", 10)
        fill(disk)
        with intercepted(lambda *_: None) as made, pytest.raises(Failure, match="cannot write") as caught:
            saved(disk / "checkpoints", 20)
    assert "mkdir" not in made
    assert caught.value.expected == "0.1 kB free"


def test_a_failed_save_names_the_newest_checkpoint_that_is_valid(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    flip(tmp_path / "step-00000020" / "model.safetensors")
    with intercepted(fail(1, errno.ENOSPC, name="mkdir")), pytest.raises(Failure) as caught:
        saved(tmp_path, 30)
    assert caught.value.kept == str(tmp_path / "step-00000010")


PACKED_TENSORS = {
    "fp32": torch.tensor([1.0, float("nan"), -0.0, 1e-45]),
    "bf16": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
    "int64": torch.tensor([2**62, -1]),
    "bool": torch.tensor([True, False]),
    "no dimension": torch.tensor(3.0),
    "empty": torch.empty(0, 3),
    "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
}
PACKED_VALUES = {
    "tuple": {"betas": (0.9, 0.999)},
    "number keys": {0: "a", 1: "b"},
    "mixed keys": {0: 1, "0": 2},
    "nested": {"groups": [{"params": [0, 1], "lr": 0.1, "foreach": None}], "on": True},
    "empty": {},
    "a mark as a key": {"$tensor": 1, "$items": [1]},
    "tuple in tuple": ((1, (2,)), []),
    "infinity": {"best": float("-inf")},
}


def through_json(state: Any) -> Any:
    tensors, value = pack_state(state)
    return unpack_state(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, json.loads(json.dumps(value))
    )


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 3), 1.0 + step)).pow(2).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("tensor", PACKED_TENSORS.values(), ids=PACKED_TENSORS.keys())
def test_a_tensor_keeps_its_bits_type_shape_and_layout(tensor: Tensor) -> None:
    back = through_json({"state": {0: {"x": tensor}}})["state"][0]["x"]
    assert bits(back) == bits(tensor)
    assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())


@pytest.mark.parametrize("value", PACKED_VALUES.values(), ids=PACKED_VALUES.keys())
def test_a_value_keeps_its_structure(value: Any) -> None:
    back = through_json(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), {"f": len}], ids=["set", "bytes", "object", "function"])
def test_what_only_pickle_could_keep_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="without pickle"):
        pack_state({"a": value})


MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
}


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_an_optimizer_goes_on_bit_for_bit(make: Callable[[Any], torch.optim.Optimizer], steps: int) -> None:
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = make(model.parameters())
    train(model, optimizer, steps)
    twin.load_state_dict(model.state_dict())
    again = make(twin.parameters())
    again.load_state_dict(through_json(optimizer.state_dict()))
    train(model, optimizer, 2)
    train(twin, again, 2)
    assert bits(twin.weight.detach()) == bits(model.weight.detach())
    assert pack_state(again.state_dict())[1] == pack_state(optimizer.state_dict())[1]


STRIDED = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)


def read_back(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return load(bytes(format.take_snapshot({"model": named}, {})["model.safetensors"]))


@pytest.mark.parametrize("dtype", format.SAFETENSORS_DTYPES, ids=str)
def test_every_type_of_number_is_read_back_by_safetensors(dtype: torch.dtype) -> None:
    numbers = torch.ones(3, dtype=torch.uint8).to(dtype)
    tensor = read_back({"first": torch.zeros(1, dtype=torch.uint8), "w": numbers})["w"]
    assert (tensor.dtype, tensor.view(torch.uint8).tolist()) == (dtype, numbers.view(torch.uint8).tolist())


def test_tensors_of_any_size_and_layout_stand_side_by_side() -> None:
    named = {"odd": torch.ones(3, dtype=torch.bool), "none": torch.empty(0, 3), "one": torch.tensor(7), "nchw": STRIDED}
    loaded = read_back(named)
    assert {name: (t.shape, t.flatten().tolist()) for name, t in loaded.items()} == {
        name: (t.shape, t.flatten().tolist()) for name, t in named.items()
    }


def test_the_copy_does_not_change_with_what_is_trained_on() -> None:
    weights = torch.ones(4)
    taken = format.take_snapshot({"model": {"w": weights}}, {})
    weights.zero_()
    assert load(bytes(taken["model.safetensors"]))["w"].tolist() == [1.0] * 4


def test_the_next_snapshot_is_copied_into_the_same_memory() -> None:
    memory, weights = format.SnapshotBuffers(), torch.ones(4)
    before = format.take_snapshot({"model": {"w": weights}}, {}, memory)
    after = format.take_snapshot({"model": {"w": weights.mul_(2)}}, {}, memory)
    assert bytes(before["model.safetensors"]) == bytes(after["model.safetensors"])
    assert load(bytes(after["model.safetensors"]))["w"].tolist() == [2.0] * 4


def test_a_snapshot_of_another_size_gets_memory_of_its_own() -> None:
    memory = format.SnapshotBuffers()
    before = format.take_snapshot({"model": {"w": torch.ones(4)}}, {}, memory)
    after = format.take_snapshot({"model": {"w": torch.zeros(5)}}, {}, memory)
    sizes = [load(bytes(taken["model.safetensors"]))["w"].tolist() for taken in (before, after)]
    assert sizes == [[1.0] * 4, [0.0] * 5]


@pytest.mark.parametrize("dtype", format.SAFETENSORS_DTYPES, ids=str)
def test_a_group_that_is_copied_later_has_the_same_bytes(dtype: torch.dtype) -> None:
    numbers = STRIDED.to(torch.uint8).to(dtype).contiguous(memory_format=torch.channels_last)
    named = {"w": numbers, "one": torch.ones((), dtype=torch.uint8).to(dtype)}
    later = format.begin_snapshot({"moments": named}, {}, deferred=["moments"])
    assert later.finish() == format.take_snapshot({"moments": named}, {})


def test_what_is_not_laid_out_as_in_a_file_is_copied_at_once_all_the_same() -> None:
    weights = STRIDED.clone()
    taking = format.begin_snapshot({"model": {"w": weights}}, {})
    assert taking.copied.is_set()
    weights.zero_()
    assert torch.equal(load(bytes(taking.finish()["model.safetensors"]))["w"], STRIDED)


def test_memory_for_it_is_kept_too() -> None:
    memory = format.SnapshotBuffers()
    for weights in (STRIDED, STRIDED + 1, STRIDED.double()):
        files = format.take_snapshot({"model": {"w": weights}}, {}, memory)
        assert torch.equal(load(bytes(files["model.safetensors"]))["w"], weights)
    assert len(memory.staging) == 1


def test_only_what_is_copied_later_may_not_change_until_it_was() -> None:
    now, later = torch.ones(4), torch.ones(4)
    taking = format.begin_snapshot({"model": {"w": now}, "moments": {"w": later}}, {}, deferred=["moments"])
    assert not taking.copied.is_set()
    now.zero_()
    files = taking.finish()
    assert taking.copied.is_set()
    later.zero_()
    assert [load(bytes(files[f"{name}.safetensors"]))["w"].tolist() for name in ("model", "moments")] == [[1.0] * 4] * 2


def test_nobody_waits_for_a_copy_that_is_there() -> None:
    assert format.begin_snapshot({"model": {"w": torch.ones(4)}}, {}, deferred=["moments"]).copied.is_set()


def test_nobody_waits_for_a_copy_that_failed() -> None:
    taking = format.begin_snapshot({"moments": {"w": torch.ones(4)}}, {}, deferred=["moments"])
    taking.deferred[0][0].flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        taking.finish()
    assert taking.copied.is_set()


def test_a_group_without_tensors_is_a_file_too() -> None:
    assert read_back({}) == {}


def test_the_same_content_gives_the_same_bytes() -> None:
    snapshot = format.take_snapshot({"model": {"b": STRIDED, "a": torch.ones(1)}}, {})
    other = format.take_snapshot({"model": {"a": torch.ones(1), "b": STRIDED}}, {})
    assert snapshot == other


def test_numbers_that_are_not_finite_are_kept_beside_the_tensors() -> None:
    taken = format.take_snapshot({}, {"best": float("-inf")})
    assert json.loads(bytes(taken["state.json"])) == {"best": float("-inf")}


def test_one_copy_is_held_and_no_second_is_made_on_the_way() -> None:
    script = "import torch, resource\nfrom train.checkpoint import format as checkpoints\nw = torch.ones(64 << 20)\n"
    script += "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\nbefore = peak()\n"
    script += "taken = checkpoints.take_snapshot({'model': {'w': w}}, {})\n"
    script += "print((peak() - before) / 1024 / 256, sum(map(len, taken.values())))"
    times, size = python("-c", script, check=True).stdout.split()
    assert float(times) < 1.5
    assert int(size) > 256 << 20
