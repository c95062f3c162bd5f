"""What is copied is what was there, once, and any reader of safetensors can read it."""

from __future__ import annotations

import json

import pytest
import torch
from processes import python
from safetensors.torch import load

from train.checkpoint import format

STRIDED = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)


def back(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return load(bytes(format.take_snapshot({"model": named}, {})["model.safetensors"]))


@pytest.mark.parametrize("dtype", format.SAFETENSORS_DTYPES, ids=str)
def test_every_type_of_number_is_read_back_by_safetensors(dtype: torch.dtype) -> None:
    ones = torch.ones(3, dtype=torch.uint8).to(dtype)
    found = back({"first": torch.zeros(1, dtype=torch.uint8), "w": ones})["w"]
    assert (found.dtype, found.view(torch.uint8).tolist()) == (dtype, ones.view(torch.uint8).tolist())


def test_tensors_of_any_size_and_layout_stand_side_by_side() -> None:
    named = {"odd": torch.ones(3, dtype=torch.bool), "none": torch.empty(0, 3), "one": torch.tensor(7), "nchw": STRIDED}
    found = back(named)
    assert {name: (t.shape, t.flatten().tolist()) for name, t in found.items()} == {
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
    assert back({}) == {}


def test_the_same_content_gives_the_same_bytes() -> None:
    one = format.take_snapshot({"model": {"b": STRIDED, "a": torch.ones(1)}}, {})
    other = format.take_snapshot({"model": {"a": torch.ones(1), "b": STRIDED}}, {})
    assert one == other


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
