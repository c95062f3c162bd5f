"""Where the code makes a Failure: every place found in the source, and the place that made one that was caught."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from entrypoint import Failure

ROOT = Path(__file__).parents[2]
PACKAGES = ("entrypoint", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A parsed file: `calls` are (function around it, call); `makers` the functions that word a failure for others."""

    name: str
    calls: tuple[tuple[str, ast.Call], ...]
    makers: frozenset[str]
    imported: dict[str, str]


@cache
def modules() -> dict[str, Module]:
    """Path below the repository -> module."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): _module(path) for path in files}


def _module(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    makers = {one.name for one in functions if _is_maker(one)}
    calls = tuple(_calls(tree, "<module>"))
    return Module(
        name=str(path.relative_to(ROOT)), calls=calls, makers=frozenset(makers), imported=dict(_imported(tree))
    )


def _is_maker(function: ast.FunctionDef) -> bool:
    returns = function.returns.id if isinstance(function.returns, ast.Name) else ""
    return returns == "Failure" or (returns == "NoReturn" and any(isinstance(n, ast.Raise) for n in ast.walk(function)))


def _calls(node: ast.AST, inside: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield inside, child
        yield from _calls(child, child.name if isinstance(child, ast.FunctionDef) else inside)


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Name here -> `package/module.py` or `package/module.py:function`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            folder = (node.module or "").replace(".", "/")
            for alias in node.names:
                whole = f"{folder}/{alias.name}.py"
                is_module = (ROOT / whole).exists()
                yield alias.asname or alias.name, whole if is_module else f"{folder}.py:{alias.name}"


@cache
def called_makers() -> frozenset[str]:
    """`path:function` of every maker that some code calls; what nobody calls (a handler) is a place of its own."""
    return frozenset(
        target for module in modules().values() for _, call in module.calls if (target := _maker(module, call))
    )


def _maker(module: Module, call: ast.Call) -> str | None:
    """Which maker this calls, if any."""
    found = None
    if isinstance(call.func, ast.Name):
        name = call.func.id
        found = f"{module.name}:{name}" if name in module.makers else module.imported.get(name)
    elif isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        found = f"{module.imported.get(call.func.value.id)}:{call.func.attr}"
    path, _, function = (found or "").partition(":")
    return found if path in modules() and function in modules()[path].makers else None


def _makes(module: Module, call: ast.Call) -> bool:
    return (isinstance(call.func, ast.Name) and call.func.id == "Failure") or _maker(module, call) is not None


@cache
def places() -> dict[str, tuple[str, int, int]]:
    """`path:function`, numbered where one function has several -> (path, first line, last line) of the call."""
    found: dict[str, tuple[str, int, int]] = {}
    for path, module in modules().items():
        made = [(where, call) for where, call in module.calls if _makes(module, call)]
        outside = [(where, call) for where, call in made if f"{path}:{where}" not in called_makers()]
        for where, call in sorted(outside, key=lambda pair: pair[1].lineno):
            names = (f"{path}:{where}" + (f"#{number}" if number > 1 else "") for number in range(1, 99))
            name = next(name for name in names if name not in found)
            found[name] = (path, call.lineno, call.end_lineno or call.lineno)
    return found


def place_of(frame: FrameType | None) -> str | None:
    """The place that the code in `frame`, or what called it, stands for."""
    while frame is not None:
        path = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if path in modules() and f"{path}:{frame.f_code.co_name}" not in called_makers():
            line = frame.f_lineno
            around = [
                (last - first, name)
                for name, (at, first, last) in places().items()
                if at == path and first <= line <= last
            ]
            return min(around)[1] if around else f"{path}:{frame.f_code.co_name} (no place)"
        frame = frame.f_back
    return None


@dataclass(slots=True)
class Seen:
    """The places of all failures made in a block, and of those shown to the user, in this order."""

    made: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)


@contextmanager
def watched() -> Iterator[Seen]:
    """Notes where each Failure of the block is made, and which are shown."""
    real, seen = (Failure.__init__, Failure.__str__), Seen()

    def make(self: Failure, *arguments: Any, **facts: Any) -> None:
        real[0](self, *arguments, **facts)
        seen.made.append(place_of(sys._getframe(1)) or "nowhere")
        self.place = seen.made[-1]  # type: ignore[attr-defined]

    def show(self: Failure) -> str:
        seen.shown.append(getattr(self, "place", "nowhere"))
        return real[1](self)

    Failure.__init__, Failure.__str__ = make, show  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Failure.__init__, Failure.__str__ = real  # type: ignore[method-assign]
