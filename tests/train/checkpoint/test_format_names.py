"""What is packed comes back bit for bit, and nothing that would need pickle is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # the first optimizer imports it, and it sets a variable that a test may not leave behind
from torch import Tensor, nn

from train.checkpoint.format import pack_state, unpack_state

TENSORS = {
    "fp32": torch.tensor([1.0, float("nan"), -0.0, 1e-45]),
    "bf16": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
    "int64": torch.tensor([2**62, -1]),
    "bool": torch.tensor([True, False]),
    "no dimension": torch.tensor(3.0),
    "empty": torch.empty(0, 3),
    "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
}
VALUES = {
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


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS.keys())
def test_a_tensor_keeps_its_bits_type_shape_and_layout(tensor: Tensor) -> None:
    back = through_json({"state": {0: {"x": tensor}}})["state"][0]["x"]
    assert bits(back) == bits(tensor)
    assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
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
