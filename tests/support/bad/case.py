"""Gives the program one bad input and records what the user gets: exit code, text, and what was written."""

from __future__ import annotations

import importlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from machines import machine
from trials import Trial, last_lines
from worlds import CONTRACT

from entrypoint import ExitCode, Failure
from entrypoint import __main__ as entry
from entrypoint import plan as planning
from train import __main__ as front
from train.config.load import keep_last_overrides

# What a payload would leave where it ran.
MARK = "executed"
PAYLOAD = f"open({MARK!r}, 'w')"


Door = Callable[["Case", Path], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One bad input. `says`: words of the message; `fix`: words of its fix.

    config: what cfg.yaml holds, which is then given with --config. prepare: puts more into the fresh folder, which is
    the working directory; where it returns a dict, that fills {names} in `line`. door: how the program is entered.
    writes: patterns of the paths that may appear or change. row: of docs/evidence/failures.md. machine: in what the
    stand-in differs from eight cores without GPUs.
    """

    id: str
    code: int
    says: tuple[str, ...]
    fix: str
    line: tuple[str, ...] = ("check",)
    config: str | bytes | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], object] = lambda folder: None
    door: Door
    writes: tuple[str, ...] = ()
    row: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one case gave: the exit code, what was printed, and the paths that should not have been written."""

    code: int
    text: str
    written: tuple[str, ...]

    @property
    def block(self) -> str:
        """The error alone; of a clean stop, which is none, all."""
        return self.text[max(0, self.text.find("ERROR[")) :]


def through_train(case: Case, folder: Path) -> int:
    """The command `train`, in this process."""
    return front.run_command(_line(case), dict(case.environ))


def through_entrypoint(case: Case, folder: Path) -> int:
    """The command `entrypoint`."""
    with _environ(case.environ):
        return entry.main(_line(case))


def through_rank(case: Case, folder: Path) -> int:
    """One rank, as its parent starts it."""
    from jobs import TINY, forget_accelerate

    from train import worker
    from train.run.stop import StopSignals

    first = () if case.config is not None else TINY
    with suppress(ValueError):
        sys.path.remove(str(folder))
    path, loaded = list(sys.path), set(sys.modules)
    importlib.invalidate_caches()
    forget_accelerate()
    try:
        given = [*first, "run.name=run", *case.line]
        settings = keep_last_overrides([word for word in given if "=" in word])
        options = [word for word in (*_line(case), *given) if "=" not in word]
        return worker.run([*dict.fromkeys(options), *settings], CONTRACT | dict(case.environ), StopSignals())
    finally:
        forget_accelerate()
        sys.path[:] = path
        for name in [name for name in sys.modules if name.startswith("mine") and name not in loaded]:
            kept = getattr(sys.modules.pop(name), "KEPT", None)
            if kept is not None:  # a file, whose garbage collection would warn in a later test
                kept.close()


def through(call: Callable[[Path], object]) -> Door:
    """A function whose failure is shown as a front door shows it: for what takes several machines to reach."""

    def door(case: Case, folder: Path) -> int:
        try:
            call(folder)
        except Failure as failure:
            print(failure, file=sys.stderr)
            return int(failure.code)
        return 0

    return door


def standing_in(door: Door, module: Any, name: str, value: object) -> Door:
    """`door` on a machine that this one is not: `module.name` is `value` meanwhile."""

    def on_that_machine(case: Case, folder: Path) -> int:
        real = getattr(module, name)
        setattr(module, name, value)
        try:
            return door(case, folder)
        finally:
            setattr(module, name, real)

    on_that_machine.__name__ = door.__name__
    return on_that_machine


def _line(case: Case) -> list[str]:
    return [*case.line, *(["--config", "cfg.yaml"] if case.config is not None else [])]


def meet(case: Case, folder: Path) -> Outcome:
    """Give the program the input, in `folder`, which is empty."""
    if case.config is not None:
        (folder / "cfg.yaml").write_bytes(case.config if isinstance(case.config, bytes) else case.config.encode())
    printed = io.StringIO()
    with _inside(folder), _stand_in(case.machine):
        facts = case.prepare(folder)
        if isinstance(facts, dict):
            case = replace(case, line=tuple(word.format(**facts) for word in case.line))
        before = snapshot(folder)
        with redirect_stdout(printed), redirect_stderr(printed), _console() as console:
            try:
                code = case.door(case, folder)
            except SystemExit as left:
                code = int(left.code or 0)
            if isinstance(facts, dict) and "held" in facts:
                facts["held"].close()
            text = printed.getvalue() + console.read_text(errors="replace")
    written = tuple(name for name in _changed(before, snapshot(folder)) if not _allowed(name, case.writes))
    return Outcome(code=code, text=text, written=written)


def wrong_in(case: Case, outcome: Outcome) -> list[str]:
    """What is not as it should be, in words."""
    stop = case.code == ExitCode.STOPPED
    fix = outcome.block.partition("next: " if stop else "fix: ")[2]
    results = {
        f"exit code {outcome.code}": outcome.code != case.code,
        f"no ERROR[{case.code}], or one for a stop": (f"ERROR[{case.code}]" in outcome.text) == stop,
        "a traceback": "Traceback" in outcome.text,
        f"written: {', '.join(outcome.written)}": bool(outcome.written),
        f"no fix with {case.fix!r}": case.fix not in fix,
    } | {f"no word {word!r}": word not in outcome.block for word in case.says}
    return [what for what, is_wrong in results.items() if is_wrong]


def trial(case: Case, outcome: Outcome) -> Trial:
    """For the page."""
    wrong = wrong_in(case, outcome)
    return Trial(
        row=case.row or case.id,
        injector=case.id,
        process=case.door.__name__.removeprefix("through_"),
        expected=case.code,
        observed=outcome.code,
        ok=not wrong,
        lines=[*last_lines(outcome.block), *wrong],
    )


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every path below `folder` with its kind and content."""
    results = {}
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(above, name)
            status = path.lstat()
            content = b""
            if path.is_file() and not path.is_symlink() and status.st_size < 1 << 20:
                with suppress(OSError):
                    content = path.read_bytes()
            results[str(path.relative_to(folder))] = (status.st_mode, content)
    return results


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _allowed(name: str, patterns: tuple[str, ...]) -> bool:
    return name == "__pycache__" or "__pycache__/" in name or any(fnmatchcase(name, pattern) for pattern in patterns)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _console() -> Iterator[Path]:
    """What is written to the descriptors themselves, as the parent of ranks does."""
    with tempfile.NamedTemporaryFile() as file:
        kept = [os.dup(descriptor) for descriptor in (1, 2)]
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            yield Path(file.name)
        finally:
            for descriptor, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)


@contextmanager
def _environ(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({"PATH": before.get("PATH", ""), "HOME": before.get("HOME", "/")} | dict(variables))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _stand_in(changes: Mapping[str, Any]) -> Iterator[None]:
    """A machine with known facts for the planner."""
    real = planning.read_machine
    planning.read_machine = lambda environ, *, gpus: machine(**changes)
    try:
        yield
    finally:
        planning.read_machine = real


def emptied(folder: Path) -> Path:
    """A fresh folder at the same place."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
