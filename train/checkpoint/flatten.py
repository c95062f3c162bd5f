"""A nested state of tensors and numbers becomes flat tensors and JSON, and back, bit for bit and without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# JSON has no tensors, tuples or keys that are not text. Each becomes an object with one of these marks.
TENSOR, TUPLE, ITEMS = "$tensor", "$tuple", "$items"
MARKS = frozenset({TENSOR, TUPLE, ITEMS})


def pack(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Split `state`, such as an optimizer's state_dict(), into its tensors by path and a JSON value that names them.

    Raises:
        TypeError: a value is neither a tensor, a container, a number, text nor None.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _encode(state, "", tensors)


def unpack(tensors: Mapping[str, Tensor], value: Any) -> Any:
    """What `pack` was given. Tensors keep their memory layout (channels_last), so that the same kernels run."""
    if isinstance(value, list):
        return [unpack(tensors, item) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return _laid_out(tensors[value[TENSOR]], value.get("stride"))
    if TUPLE in value:
        return tuple(unpack(tensors, value[TUPLE]))
    if ITEMS in value:
        return {key: unpack(tensors, item) for key, item in value[ITEMS]}
    return {key: unpack(tensors, item) for key, item in value.items()}


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[path] = value
        return {TENSOR: path} | ({} if value.is_contiguous() else {"stride": list(value.stride())})
    if isinstance(value, list):
        return [_encode(item, f"{path}.{at}", tensors) for at, item in enumerate(value)]
    if isinstance(value, tuple):
        return {TUPLE: _encode(list(value), path, tensors)}
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, tensors)
    raise TypeError(f"{path}: cannot keep a {type(value).__name__} without pickle")


def _encode_mapping(value: Mapping[Any, Any], path: str, tensors: dict[str, Tensor]) -> Any:
    items = [(key, _encode(item, f"{path}.{key}".lstrip("."), tensors)) for key, item in value.items()]
    plain = all(isinstance(key, str) for key in value) and not MARKS & value.keys()
    return dict(items) if plain else {ITEMS: [[key, item] for key, item in items]}


def _laid_out(tensor: Tensor, stride: list[int] | None) -> Tensor:
    if stride is None:
        return tensor
    return torch.empty_strided(tuple(tensor.shape), stride, dtype=tensor.dtype).copy_(tensor)
