"""The n-th of the system calls that a save makes: fail it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

WATCHED = ("mkdir", "open", "write", "fsync", "close", "rename", "unlink", "rmdir")


@contextmanager
def intercepted(action: Callable[[int, str, tuple[Any, ...]], None]) -> Iterator[list[str]]:
    """Before each watched call of `os`, run `action(number, name, arguments)`; yields the names called so far."""
    real = {name: getattr(os, name) for name in WATCHED}
    made: list[str] = []

    def stand_in(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            action(len(made), name, arguments)
            return real[name](*arguments, **options)

        return call

    for name in WATCHED:
        setattr(os, name, stand_in(name))
    try:
        yield made
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def fail(at: int, number: int, *, name: str | None = None, times: int = 1) -> Callable[..., None]:
    """An action that raises errno `number` in call `at` (of those called `name`), and in the following `times - 1`."""
    seen = 0

    def action(_: int, called: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        seen += name in (None, called)
        if name in (None, called) and at <= seen < at + times:
            raise OSError(number, os.strerror(number))

    return action
