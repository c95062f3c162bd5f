"""This module imports the user's own `package.module:factory` or class, and reports errors with the line
of the user's code that raised them.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import json
import pkgutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

from entrypoint import ExitCode, Failure
from train.config import schema

EXPECTED_MODULE = "a module beside the config file, or an installed one"


def add_config_folder_to_path(config: str | None, *wanted: str) -> None:
    """Let modules be found in the config file's folder too (without a file: in the working directory).

    Last on the path, so that nothing there hides a package, and only where one of `wanted` names a factory.
    """
    folder = str(Path(config).resolve().parent if config else Path.cwd())
    if any(schema.is_factory(name) for name in wanted) and folder not in sys.path:
        sys.path.append(folder)


def refuse_recorded_factory(
    recorded: Mapping[str, str], record: Path, *, config: str | None, typed: Collection[str], args: Mapping[str, Any]
) -> None:
    """Refuse a factory that only a run or an export names: whoever wrote that folder chose the name. Imports nothing.

    The user names it in his own config, or types it where it is a module of the folder that he works in.

    Args:
        recorded: the names by their setting, `model.name` and `data.name`. record: the folder that they come from.
        config: the file of the user's --config, which names them too. typed: the settings on his command line.
        args: model.args, for the error.

    Raises:
        Failure: SECURITY, saying which code would run, and how to name it.
    """
    found = {key: name for key, name in recorded.items() if schema.is_factory(name)}
    record = record.resolve()
    if config is not None and found and Path(config).resolve().is_relative_to(record):
        raise Failure(
            f"--config {config} lies in {record}: who wrote that folder could have any code run with it",
            found=_describe_recorded(found, args),
            fix="name the file that you wrote yourself; one that you want to keep there, copy out of it first",
            code=ExitCode.SECURITY,
        )
    if config is not None:
        return
    files = {key: _find_user_file(name, record) for key, name in found.items()}
    own = {key: file for key, file in files.items() if file is not None}
    if own == files and all(key in typed for key in found):
        return
    fix = "name the file of your training with --config FILE, in which you chose this code"
    if own == files:
        fix += f"; or, if you know what is in {' and '.join(sorted(set(map(str, own.values()))))}, add "
        fix += " ".join(f"{key}={name}" for key, name in found.items())
    raise Failure(
        f"{record} names code to run as you, and you have not named it",
        found=_describe_recorded(found, args),
        expected="code that you name: in a config of yours, or as a module of the folder that you start it in",
        fix=fix,
        code=ExitCode.SECURITY,
    )


def _describe_recorded(recorded: Mapping[str, str], args: Mapping[str, Any]) -> str:
    listed = [f"{key}: {name}" for key, name in recorded.items()]
    return ", ".join([*listed, f"model.args: {json.dumps(args):.300}"] if "model.name" in recorded else listed)


def _find_user_file(name: str, record: Path) -> Path | None:
    """The file below the working folder that defines `name`; None where code would come from anywhere else: from an
    installed package, also one that the user's module imports from, or out of `record`."""
    module, _, function = name.partition(":")
    first, folder = module.partition(".")[0], Path.cwd()
    if first in sys.stdlib_module_names:
        return None
    here, taken = (PathFinder.find_spec(first, path) for path in ([str(folder)], [*sys.path, str(folder)]))
    if here is None or here.origin is None or taken is None or taken.origin != here.origin:
        return None  # no such file (a folder without __init__.py is none), or a package that comes before it
    if first in sys.modules and getattr(sys.modules[first], "__file__", None) != here.origin:
        return None
    place = folder.joinpath(*module.split("."))
    file = next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)
    if file is None or file.resolve().is_relative_to(record):
        return None
    return file if _defines(file, function) else None


def _defines(file: Path, function: str) -> bool:
    """Whether it is a function or class of this very file. The file is read, not run."""
    try:
        written = ast.parse(file.read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return any(isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == function for one in written)


def load_factory(name: str, key: str = "factory") -> Callable[..., Any]:
    """What package.module:factory names. `key`: the setting that it comes from, for the error.

    Raises:
        Failure: USAGE, where the module is missing, fails by itself, or has no such function.
    """
    module_name, _, attribute = name.partition(":")
    module = _import_module(module_name, f"{key} {name}")
    if not hasattr(module, attribute):
        own = [one for one in vars(module) if not one.startswith("_") and callable(getattr(module, one))]
        _raise_factory_error(f"{key} {name}: {module_name} has no {attribute}", _list_functions(own), attribute, own)
    factory = getattr(module, attribute)
    if not callable(factory):
        found = f"{attribute} is of type {type(factory).__name__}"
        _raise_factory_error(f"{key} {name} cannot be called", found, fix=f"make {attribute} a function")
    return factory  # type: ignore[no-any-return]


def call_factory(
    name: str, key: str, *arguments: Any, factory: Callable[..., Any] | None = None, **options: Any
) -> Any:
    """Load it, unless the caller has it (`factory`), and call it.

    Raises:
        Failure: USAGE as above, or for an error in the user's code, naming its line. A Failure of its own passes, and
            so does a lack of memory.
    """
    factory = factory or load_factory(name, key)
    try:
        return factory(*arguments, **options)
    except (Failure, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's
            raise
        raise user_code_failure(f"{key} {name} failed", error) from error


def user_code_failure(what: str, error: BaseException) -> Failure:
    """An error in the user's code, as one: the last line of his that was reached, and what was said there."""
    return Failure(what, found=describe_user_error(error), fix="mend it there", code=ExitCode.USAGE)


def describe_user_error(error: BaseException, library: Path | None = None) -> str:
    """The error and the last line of the user's own code that led to it.

    library: a folder of code that called the user's.
    """
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: SyntaxError: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_frame(frame.filename)]
    frames = [frame for frame in frames if library is None or not Path(frame.filename).is_relative_to(library)]
    if not frames:
        return text
    folder = Path(frames[0].filename).parent
    last = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)][-1]
    return f"{last.filename}, line {last.lineno}: {text}"


def _is_user_frame(path: str) -> bool:
    """Whether a frame is none of this package's, nor of Python's own import."""
    return (
        not path.startswith("<frozen")
        and path != importlib.__file__
        and not Path(path).is_relative_to(Path(__file__).parent)
    )


def _import_module(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except Failure:  # also: a signal that asked to stop meanwhile
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise user_code_failure(f"{what}: an import in it is missing", error) from error
        _raise_factory_error(
            f"{what}: there is no module {error.name}",
            f"looked in {_last_search_folder()}",
            error.name,
            _sibling_modules(error.name),
        )
    except (Exception, SystemExit) as error:
        raise user_code_failure(f"{what}: the module fails when it is imported", error) from error


def _sibling_modules(module: str) -> list[str]:
    """The modules that there are in the same package, or at the top."""
    package = module.rpartition(".")[0]
    folders = getattr(sys.modules.get(package), "__path__", []) if package else None
    return [f"{package}.{found.name}".removeprefix(".") for found in pkgutil.iter_modules(folders)]


def _last_search_folder() -> str:
    """Where modules were looked for last: the config file's folder, where there is one."""
    return sys.path[-1] if sys.path else "no folder: sys.path is empty"


def _raise_factory_error(what: str, found: str, wanted: str = "", known: Iterable[str] = (), fix: str = "") -> NoReturn:
    close = difflib.get_close_matches(wanted, known, 1)
    fix = fix or (
        f"write {close[0]} instead of {wanted}" if close else "write package.module:factory as it is in Python"
    )
    raise Failure(what, found=found, expected=EXPECTED_MODULE, fix=fix, code=ExitCode.USAGE)


def _list_functions(listed: list[str]) -> str:
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return f"only {', '.join(listed[:5])}{more}" if listed else "no function in it"
