"""The largest micro batch that fits is found by trials, the same on all ranks, and the training is the same with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fit_ranks
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jobs import built
from pretended import Pretended
from ranks import together

from entrypoint import ExitCode, Failure
from train import batch_size
from train.batch_size import GpuMemory, MicroBatchCache, divisors, find_largest
from train.trainer import Trainer

AUTO = ("train.micro_batch_size=auto", "train.max_steps=2")
HELD = 120_000  # bytes: 8 of these samples fit, 16 do not
SIGNS = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("CUDA error: out of memory"),
)


def pretend(monkeypatch: pytest.MonkeyPatch, room: int) -> Pretended:
    memory = Pretended(room=room)
    monkeypatch.setattr(batch_size, "get_device_memory", lambda device: memory)
    return memory


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.state.network.parameters()])


def size_for(folder: Path, memory: Pretended, notes: MicroBatchCache) -> int:
    """What a job with this memory and these notes takes."""
    real = batch_size.find_micro_batch
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            batch_size,
            "find_micro_batch",
            lambda resolved, splits, runtime, batch, _, pulse: real(resolved, splits, runtime, batch, notes, pulse),
        )
        with built(folder, *AUTO) as trainer:
            return trainer.batches.micro


@given(number=st.integers(1, 5000), limit=st.integers(0, 5000), first=st.integers(1, 6000))
def test_the_search_finds_the_largest_in_few_trials(number: int, limit: int, first: int) -> None:
    sizes, tried = divisors(number), []
    largest = find_largest(sizes, lambda size: tried.append(size) or size <= limit, first)  # type: ignore[func-returns-value]
    assert largest == max((size for size in sizes if size <= limit), default=None)
    assert len(tried) == len(set(tried)) <= 2 * len(sizes).bit_length() + 12


def test_divisors_rise_and_divide() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]


def test_the_largest_that_fits_with_a_margin_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pretend(monkeypatch, HELD)
    with built(tmp_path, *AUTO) as trainer:
        assert (trainer.batches.micro, trainer.batches.accumulation) == (8, 2)
        assert trainer.runtime.accelerator.gradient_accumulation_steps == 2
        assert trainer.micro_batch is not None
        assert trainer.micro_batch.needed <= batch_size.USABLE_FRACTION * trainer.micro_batch.free
    assert "the largest that fits" in str(trainer.batches)
    assert max(memory.peaks) > batch_size.USABLE_FRACTION * HELD


def test_what_was_tried_leaves_no_trace_in_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with built(tmp_path / "given", *AUTO, "train.micro_batch_size=8") as trainer:
        trainer.fit()
        given = weights(trainer)
    pretend(monkeypatch, HELD)
    with built(tmp_path / "found", *AUTO) as trainer:
        trainer.fit()
        assert torch.equal(weights(trainer), given)


def test_a_size_that_is_known_is_tried_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = MicroBatchCache(folder=tmp_path / "caches", record={})
    assert size_for(tmp_path / "first", pretend(monkeypatch, HELD), notes) == 8
    again = pretend(monkeypatch, HELD)
    assert (size_for(tmp_path / "second", again, notes), again.tried) == (8, 1)


def test_a_size_that_fits_no_longer_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = MicroBatchCache(folder=tmp_path / "caches", record={})
    size_for(tmp_path / "first", pretend(monkeypatch, HELD), notes)
    assert size_for(tmp_path / "second", pretend(monkeypatch, HELD // 2), notes) == 2


def test_a_size_that_was_found_on_a_busy_device_is_not_kept_for_an_idle_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = MicroBatchCache(folder=tmp_path / "caches", record={})
    busy = size_for(tmp_path / "busy", pretend(monkeypatch, HELD // 2), notes)
    assert size_for(tmp_path / "idle", pretend(monkeypatch, HELD), notes) > busy


def test_a_run_goes_on_with_what_its_own_record_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, HELD)
    with built(tmp_path, *AUTO) as trainer:
        assert trainer.micro_batch is not None
        key = trainer.micro_batch.key
    kept = MicroBatchCache(folder=tmp_path, record={"key": key, "micro": 2})
    assert kept.look_up(key, 1.0) == 2
    assert kept.look_up("of another world", 1.0) is None


def test_a_note_that_cannot_be_read_or_kept_is_none(tmp_path: Path) -> None:
    (tmp_path / "micro-batches").write_text("a file where a folder belongs")
    notes = MicroBatchCache(folder=tmp_path, record={})
    notes.store(batch_size.MicroBatchFit(micro=1, key="k", needed=0.1, free=1.0))
    assert notes.look_up("k", 1.0) is None


def test_where_one_sample_does_not_fit_the_numbers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 1000)
    with pytest.raises(Failure) as caught, built(tmp_path, *AUTO):
        pass
    assert caught.value.code == ExitCode.RESOURCE
    assert "rank 0 has 0.00 GiB free, and they take more" in str(caught.value)


def test_the_cpu_and_a_number_of_the_user_s_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with built(tmp_path / "cpu", *AUTO) as trainer:
        assert (trainer.batches.micro, trainer.micro_batch) == (16, None)
    memory = pretend(monkeypatch, HELD)
    with built(tmp_path / "given", "train.micro_batch_size=16") as trainer:
        assert (trainer.batches.micro, memory.tried) == (16, 0)


def test_ranks_agree_on_what_the_one_with_the_least_memory_holds(tmp_path: Path) -> None:
    together(fit_ranks.__file__, 2, tmp_path / "ranks", "1000000", "120000")
    recorded = [json.loads((tmp_path / "ranks" / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert recorded == [[8, 8], [8, 8]]


def fail(error: Exception) -> None:
    raise error


def test_the_cpu_has_none_that_could_be_tried() -> None:
    assert batch_size.get_device_memory(torch.device("cpu")) is None
    assert batch_size.get_device_memory(torch.device("cuda", 0)) == GpuMemory(torch.device("cuda", 0))


@pytest.mark.parametrize("error", SIGNS, ids=["torch", "cudnn", "driver"])
def test_a_lack_of_memory_is_an_answer(error: RuntimeError) -> None:
    assert not batch_size.fits_in_memory(lambda: fail(error))
    assert batch_size.fits_in_memory(lambda: None)


def test_another_error_is_none() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        batch_size.fits_in_memory(lambda: fail(RuntimeError("shape mismatch")))


def test_what_torch_asked_the_driver_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = GpuMemory(torch.device("cuda", 0))
    stand_ins: dict[str, Any] = {
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device: None,
        "memory_reserved": lambda device: 100,
        "max_memory_reserved": lambda device: 350,
        "mem_get_info": lambda device: (700, 1000),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    assert (memory.free(), memory.taken(lambda: None)) == (700, 250)
    assert memory.taken(lambda: fail(SIGNS[0])) is None
