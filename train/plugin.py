"""From package.module:factory to the user's own function, with errors that say where in his code the reason is."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from entrypoint import ExitCode, Failure
from train.settings import names

BESIDE = "a module beside the config file, or an installed one"


def look_beside(config: str | None, *wanted: str) -> None:
    """Let modules be found in the config file's folder too (without a file: in the working directory).

    Last on the path, so that nothing there hides a package, and only where one of `wanted` names a factory.
    """
    folder = str(Path(config).resolve().parent if config else Path.cwd())
    if any(names.is_factory(name) for name in wanted) and folder not in sys.path:
        sys.path.append(folder)


def load(name: str, key: str = "factory") -> Callable[..., Any]:
    """What package.module:factory names. `key`: the setting that it comes from, for the error.

    Raises:
        Failure: USAGE, where the module is missing, fails by itself, or has no such function.
    """
    module_name, _, attribute = name.partition(":")
    module = _imported(module_name, f"{key} {name}")
    if not hasattr(module, attribute):
        own = [one for one in vars(module) if not one.startswith("_") and callable(getattr(module, one))]
        _refuse(f"{key} {name}: {module_name} has no {attribute}", _some(own), attribute, own)
    factory = getattr(module, attribute)
    if not callable(factory):
        found = f"{attribute} is of type {type(factory).__name__}"
        _refuse(f"{key} {name} cannot be called", found, fix=f"make {attribute} a function")
    return factory  # type: ignore[no-any-return]


def call(name: str, key: str, *arguments: Any, **options: Any) -> Any:
    """Load it, and call it.

    Raises:
        Failure: USAGE as above, or for an error in the user's code, naming its line. A Failure of its own passes, and
            so does a lack of memory.
    """
    factory = load(name, key)
    try:
        return factory(*arguments, **options)
    except (Failure, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's
            raise
        raise failed(f"{key} {name} failed", error) from error


def failed(what: str, error: BaseException) -> Failure:
    """An error in the user's code, as one: the last line of his that was reached, and what was said there."""
    return Failure(what, found=said(error), fix="mend it there", code=ExitCode.USAGE)


def said(error: BaseException) -> str:
    """The error and the last line of the user's own code that led to it."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: SyntaxError: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _foreign(frame.filename)]
    if not frames:
        return text
    folder = Path(frames[0].filename).parent
    last = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)][-1]
    return f"{last.filename}, line {last.lineno}: {text}"


def _foreign(path: str) -> bool:
    """Whether a frame is none of this package's, nor of Python's own import."""
    return (
        not path.startswith("<frozen")
        and path != importlib.__file__
        and not Path(path).is_relative_to(Path(__file__).parent)
    )


def _imported(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except Failure:  # also: a signal that asked to stop meanwhile
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise failed(f"{what}: an import in it is missing", error) from error
        _refuse(f"{what}: there is no module {error.name}", f"looked in {_path()}", error.name, _beside(error.name))
    except (Exception, SystemExit) as error:
        raise failed(f"{what}: the module fails when it is imported", error) from error


def _beside(module: str) -> list[str]:
    """The modules that there are in the same package, or at the top."""
    package = module.rpartition(".")[0]
    folders = getattr(sys.modules.get(package), "__path__", []) if package else None
    return [f"{package}.{found.name}".removeprefix(".") for found in pkgutil.iter_modules(folders)]


def _path() -> str:
    """Where modules were looked for last: the config file's folder, where there is one."""
    return sys.path[-1] if sys.path else "no folder: sys.path is empty"


def _refuse(what: str, found: str, wanted: str = "", known: Iterable[str] = (), fix: str = "") -> NoReturn:
    close = difflib.get_close_matches(wanted, known, 1)
    fix = fix or (
        f"write {close[0]} instead of {wanted}" if close else "write package.module:factory as it is in Python"
    )
    raise Failure(what, found=found, expected=BESIDE, fix=fix, code=ExitCode.USAGE)


def _some(listed: list[str]) -> str:
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return f"only {', '.join(listed[:5])}{more}" if listed else "no function in it"
