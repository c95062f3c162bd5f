"""This module writes the Python code that builds an exported network without this project.

A network of torchvision or timm is built by its constructor, and by one line for each layer that this project
replaces. The code of this project's own networks goes into one file that needs only torch. A user's network needs the
user's module.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from keyword import iskeyword
from typing import Any, Final

import torch
from torch import nn

from entrypoint import redact_words
from train import plugin, rng
from train.config import schema
from train.config.models import BUILTIN_MODELS, TIMM_PREFIX
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import custom, registry, timm_models

CODE_FILE: Final = "model.py"
BUILD_FUNCTION: Final = "make_model"  # of CODE_FILE
OWN_PACKAGE: Final = "train"
CODE_HEADER: Final = '''"""The network {name}, as the project train-image defines it. It needs only torch.

{function}() builds it; the trained weights are in model.safetensors. Licence of this code: Apache-2.0.
"""

from __future__ import annotations
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCode:
    """Python code that builds a network with random weights.

    imports: lines that import what `lines` need, beside torch. lines: they assign the network to the name `network`.
    file: the content of CODE_FILE, which `lines` run; None without such a file.
    """

    imports: tuple[str, ...]
    lines: tuple[str, ...]
    file: str | None = None


def write_model_code(model: ModelConfig, *, classes: int, shape: Shape, seed: int, folder: str) -> ModelCode:
    """The code for the network that `model` describes.

    seed: run.seed, for what a user's network draws. folder: the name of the export's folder; the code runs beside it.

    Raises:
        Failure: USAGE if the user's module cannot be imported.
    """
    if schema.is_factory(model.name):
        return _factory_code(model, classes, shape, seed)
    if model.name in BUILTIN_MODELS:
        return _own_network_code(model, classes, shape, folder)
    if model.name.startswith(TIMM_PREFIX):
        return _timm_code(model, classes, shape)
    return _torchvision_code(model, classes, shape)


def _factory_code(model: ModelConfig, classes: int, shape: Shape, seed: int) -> ModelCode:
    module, _, function = model.name.partition(":")
    factory = plugin.load_factory(model.name, custom.MODEL_NAME_KEY)
    arguments = custom.factory_arguments(factory, model, classes, shape)
    takes_shape = arguments.pop("shape", None) is not None
    shape_text = {"shape": f"SimpleNamespace(channels={shape.channels}, size={shape.size})"} if takes_shape else {}
    return ModelCode(
        imports=(
            *(["from types import SimpleNamespace"] if takes_shape else []),
            f"from {module} import {function}  # the code that made the network",
        ),
        lines=(
            f"torch.manual_seed({rng.derive_seed(rng.WEIGHTS, seed)})  # the run's: a network may keep drawn numbers",
            f"network = {_call(function, arguments, shape_text)}",
        ),
    )


def path_literal(folder: str, name: str) -> str:
    """The path of a file in the export's folder, as a string in Python code."""
    return json.dumps(f"{folder}/{name}")


def _call(
    function: str, arguments: Mapping[str, Any], texts: Mapping[str, str] | None = None, first: str | None = None
) -> str:
    """The call as Python code. texts: arguments that are code already. first: code of the argument without a name."""
    parts = [_argument_code(name, value) for name, value in arguments.items()]
    parts[1:1] = [f"{name}={text}" for name, text in (texts or {}).items()]
    return f"{function}({', '.join([*([] if first is None else [first]), *parts])})"


def _argument_code(name: str, value: Any) -> str:
    """An argument as Python code, whatever its name: a run of another person may hold any. Secrets are not shown."""
    word = f"{name}={value}"
    shown = value if redact_words([word]) == [word] else "(not shown)"
    return f"{name}={shown!r}" if name.isidentifier() and not iskeyword(name) else f"**{ {name: shown}!r}"


def _own_network_code(model: ModelConfig, classes: int, shape: Shape, folder: str) -> ModelCode:
    module, function = BUILTIN_MODELS[model.name].builder.split(":")
    shape_text = f"Shape(channels={shape.channels}, size={shape.size})"
    call = _call(function, {"classes": classes, **model.args}, {"shape": shape_text})
    sections = [
        CODE_HEADER.format(name=model.name, function=BUILD_FUNCTION),
        *map(_module_source, _needed_modules(f"{OWN_PACKAGE}.models.{module}")),
        f"def {BUILD_FUNCTION}() -> nn.Module:\n"
        '    """The network that was exported, with random weights."""\n'
        f"    return {call}\n",
    ]
    return ModelCode(
        imports=("import runpy",),
        lines=(f'network = runpy.run_path({path_literal(folder, CODE_FILE)})["{BUILD_FUNCTION}"]()  # runs that file',),
        file="\n\n".join(section.strip() + "\n" for section in sections),
    )


def _needed_modules(name: str) -> list[str]:
    """The modules of this project that the module `name` imports, each after those that it needs; then `name`."""
    import_module(name)
    needed = []
    for node in ast.parse(inspect.getsource(sys.modules[name])).body:
        if _imports_own_module(node):
            needed += _needed_modules(str(node.module))  # type: ignore[attr-defined]
    return list(dict.fromkeys([*needed, name]))


def _imports_own_module(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == OWN_PACKAGE


def _module_source(name: str) -> str:
    """The source of a module without its docstring and without its imports of this project."""
    source = inspect.getsource(sys.modules[name])
    removed = set[int]()
    for node in ast.parse(source).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if is_docstring or is_future or _imports_own_module(node):
            removed.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return "\n".join(line for number, line in enumerate(source.splitlines(), 1) if number not in removed)


def _torchvision_code(model: ModelConfig, classes: int, shape: Shape) -> ModelCode:
    arguments = registry.torchvision_constructor_arguments(model.name, shape, model.args)
    arguments.pop("zero_init_residual", None)  # it decides about random weights only
    from torchvision.models import get_model_builder

    plain = _layer_codes(partial(get_model_builder(model.name), num_classes=classes, **arguments))
    changed = _layer_codes(partial(registry.model_builder(model.name), classes=classes, shape=shape, **model.args))
    constructor = _call(f"torchvision.models.{model.name}", {"num_classes": classes, **arguments})
    # `network.features[0][1].conv` for the layer `features.0.1.conv`
    paths = {path: re.sub(r"\.(\d+)\b", r"[\1]", f".{path}") for path in changed}
    replaced = [f"network{paths[path]} = {code}" for path, code in changed.items() if plain.get(path) != code]
    return ModelCode(imports=("import torchvision",), lines=(f"network = {constructor}", *replaced))


def _timm_code(model: ModelConfig, classes: int, shape: Shape) -> ModelCode:
    arguments = timm_models.constructor_arguments(model.name, classes, shape, model.args)
    call = _call("timm.create_model", arguments, first=repr(model.name.removeprefix(TIMM_PREFIX)))
    return ModelCode(imports=("import timm",), lines=(f"network = {call}",))


def _layer_codes(build: Callable[[], nn.Module]) -> dict[str, str]:
    """The code of each layer without parts, by its path. torch shows its layers as they are constructed."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.device("meta"):
                network = build()
        except NotImplementedError:  # not all constructors can do without numbers
            network = build()
    return {path: f"torch.nn.{layer!r}" for path, layer in network.named_modules() if not list(layer.children())}
