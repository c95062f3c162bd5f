"""One number that is not finite is seen, wherever it stands, and nothing else is taken for one."""

from __future__ import annotations

import pytest
import torch

from train.checkpoint import format

FLOATS = [dtype for dtype in format.SAFETENSORS_DTYPES if dtype.is_floating_point]
BAD = [
    (dtype, value)
    for dtype in FLOATS
    for value in (float("nan"), float("inf"), float("-inf"))
    if dtype != torch.float8_e4m3fn or value != value  # which has no infinity: the largest number stands for it
]


def holds(**named: torch.Tensor) -> bool:
    return format.all_finite(format.take_snapshot(1, {"model": named}, {}).files["model.safetensors"])


@pytest.mark.parametrize(("dtype", "value"), BAD, ids=str)
def test_a_bad_number_of_every_type_is_seen(dtype: torch.dtype, value: float) -> None:
    assert not holds(w=torch.tensor([1.0, value, 2.0]).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_largest_and_smallest_numbers_of_every_type_are_finite(dtype: torch.dtype) -> None:
    about = torch.finfo(dtype)
    assert holds(w=torch.tensor([about.max, about.min, about.tiny, 0.0, -0.0], dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("at", [0, format.CHUNK_NUMEL - 1, format.CHUNK_NUMEL, format.CHUNK_NUMEL + 6])
def test_it_is_seen_in_every_part_of_a_tensor(at: int) -> None:
    weights = torch.zeros(format.CHUNK_NUMEL + 7)
    weights[at] = float("nan")
    assert not holds(a=torch.ones(3), w=weights, z=torch.ones(3, dtype=torch.bfloat16))


def test_both_parts_of_a_complex_number_count() -> None:
    assert not holds(w=torch.tensor([complex(0, float("inf"))]))
    assert holds(w=torch.tensor([complex(1, 2)]))


def test_whole_numbers_are_never_bad() -> None:
    assert holds(w=torch.tensor([-1, 2**31 - 1], dtype=torch.int32), b=torch.tensor([255], dtype=torch.uint8))


def test_nothing_is_finite() -> None:
    assert holds()
    assert holds(w=torch.empty(0, 3))
