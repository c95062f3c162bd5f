"""This module imports the user's own `package.module:factory` or class.

Its errors name the line of the user's code that raised them.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import pkgutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

from entrypoint import ExitCode, Failure, list_some
from train.config import schema
from train.config.schema import RunConfig
from train.names import nearest_name

AS_IN_PYTHON: Final = "write package.module:factory as it is in Python"
EXPECTED_MODULE = "a module beside the config file, or an installed one"
LIBRARY_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})
# The program itself: multiprocessing loads it a second time, as __mp_main__.
OTHER_MODULES: Final = sys.stdlib_module_names | {"train", "entrypoint", "__main__", "__mp_main__"}
_code_folders: Final[set[Path]] = set()  # of the factories that were imported
_code_hashes: Final[WeakKeyDictionary[ModuleType, str]] = WeakKeyDictionary()  # of a module's file when it was new


def add_config_folder_to_path(config: str | None, *names: str) -> None:
    """Append the config file's folder to sys.path; without a file, the working directory.

    It comes last, so that its modules hide no package. It is appended only if one of `names` is a
    factory.
    """
    folder = str(Path(config).resolve().parent if config else Path.cwd())
    if any(schema.is_factory(name) for name in names) and folder not in sys.path:
        sys.path.append(folder)


def names_of_training(config: RunConfig) -> tuple[str, ...]:
    """What a training may import: the values of all settings that may name a user's own code."""
    return config.data.name, config.model.name, config.optim.name, config.optim.loss, *config.log.trackers


def refuse_recorded_factory(
    recorded: Mapping[str, str], record: Path, *, config: str | None, typed: Collection[str], args: Mapping[str, Any]
) -> None:
    """Refuse to run a factory that only the folder of a run or an export names. Imports nothing.

    Another user may have written that folder. The user must name the factory himself: in his own
    config, or on the command line if it is a module of the working directory.

    Args:
        recorded: the names by their setting, `model.name` and `data.name`. record: the folder that
            holds them. config: the file of --config, which names them too. typed: the settings on the
            command line. args: model.args, for the error.

    Raises:
        Failure: SECURITY, with the code that would run and how to name it.
    """
    factories = {key: name for key, name in recorded.items() if schema.is_factory(name)}
    record = record.resolve()
    if config is not None and factories and Path(config).resolve().is_relative_to(record):
        raise Failure(
            f"--config {config} lies in {record}: who wrote that folder could have any code run with it",
            found=_describe_recorded(factories, args),
            fix="name the file that you wrote yourself; one that you want to keep there, copy out of it first",
            code=ExitCode.SECURITY,
        )
    if config is not None:
        return
    files = {key: _find_user_file(name, record) for key, name in factories.items()}
    own = {key: file for key, file in files.items() if file is not None}
    if own == files and all(key in typed for key in factories):
        return
    fix = "name the file of your training with --config FILE, in which you chose this code"
    if own == files:
        fix += f"; or, if you know what is in {' and '.join(sorted(set(map(str, own.values()))))}, add "
        fix += " ".join(f"{key}={name}" for key, name in factories.items())
    raise Failure(
        f"{record} names code to run as you, and you have not named it",
        found=_describe_recorded(factories, args),
        expected="code that you name: in a config of yours, or as a module of the folder that you start it in",
        fix=fix,
        code=ExitCode.SECURITY,
    )


def _describe_recorded(recorded: Mapping[str, str], args: Mapping[str, Any]) -> str:
    listed = [f"{key}: {name}" for key, name in recorded.items()]
    return ", ".join([*listed, f"model.args: {json.dumps(args):.300}"] if "model.name" in recorded else listed)


def _find_user_file(name: str, record: Path) -> Path | None:
    """The file below the working directory that defines the factory `name`.

    None if Python would import it from an installed package, if the module itself imports it from
    elsewhere, or if the file is in `record`.
    """
    module, _, function = name.partition(":")
    first, folder = module.partition(".")[0], Path.cwd()
    if first in sys.stdlib_module_names:
        return None
    spec, resolved = (PathFinder.find_spec(first, path) for path in ([str(folder)], [*sys.path, str(folder)]))
    if spec is None or spec.origin is None or resolved is None or resolved.origin != spec.origin:
        return None  # no such module (a folder without __init__.py is none), or sys.path has another first
    if first in sys.modules and getattr(sys.modules[first], "__file__", None) != spec.origin:
        return None
    module_path = folder.joinpath(*module.split("."))
    file = next(
        (path for path in (module_path / "__init__.py", module_path.with_suffix(".py")) if path.is_file()), None
    )
    if file is None or file.resolve().is_relative_to(record):
        return None
    return file if _defines(file, function) else None


def _defines(file: Path, function: str) -> bool:
    """Whether the file itself defines this function or class. The file is parsed, not run."""
    try:
        statements = ast.parse(file.read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return any(
        isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name == function for statement in statements
    )


def load_factory(name: str, key: str = "factory") -> Callable[..., Any]:
    """Import the function or class that package.module:factory names. key: its setting, for errors.

    Raises:
        Failure: USAGE, if the module is missing, fails when imported, or has no such function.
    """
    module_name, _, attribute = name.partition(":")
    module = _import_module(module_name, f"{key} {name}")
    if not hasattr(module, attribute):
        functions = [
            function
            for function in vars(module)
            if not function.startswith("_") and callable(getattr(module, function))
        ]
        _raise_factory_error(
            f"{key} {name}: {module_name} has no {attribute}", _list_functions(functions), attribute, functions
        )
    factory = getattr(module, attribute)
    if not callable(factory):
        problem = f"{attribute} is of type {type(factory).__name__}"
        _raise_factory_error(f"{key} {name} cannot be called", problem, fix=f"make {attribute} a function")
    return factory  # type: ignore[no-any-return]


def call_factory(
    name: str, key: str, *arguments: Any, factory: Callable[..., Any] | None = None, **options: Any
) -> Any:
    """Call the factory; import it first, unless the caller passes it as `factory`.

    Raises:
        Failure: USAGE as `load_factory`, or for an error in the user's code, naming its line. A
            Failure or an out-of-memory error of the user's code is passed on.
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


def own_code() -> dict[str, str]:
    """The SHA-256 of the user's own modules by name: those of the factories, and those imported from beside them.

    It is that of the file when a call of this function first saw the loaded module: a file may change later.
    """
    own = {}
    for name, module in [*sys.modules.items()] if _code_folders else ():
        is_other = name.partition(".")[0] in OTHER_MODULES
        with suppress(OSError, TypeError):  # a module may have any __file__
            file = Path(module.__file__ or "") if not is_other and hasattr(module, "__file__") else Path()
            if LIBRARY_FOLDERS.isdisjoint(file.parts) and not _code_folders.isdisjoint(file.parents):
                if module not in _code_hashes:
                    _code_hashes[module] = hashlib.sha256(file.read_bytes()).hexdigest()
                own[name] = _code_hashes[module]
    return own


def describe_changed_code(saved: Mapping[str, str]) -> tuple[str, ...]:
    """A note that names the files of the user's own modules whose code is not what a checkpoint has recorded."""
    changed = [name for name, digest in own_code().items() if saved.get(name, digest) != digest]
    files = ", ".join(str(sys.modules[name].__file__) for name in changed)
    return (f"your own code has changed since the checkpoint was written: {files}",) if changed else ()


def user_code_failure(what: str, error: BaseException) -> Failure:
    """The failure for an error in the user's code: its last line that ran, and the message."""
    return Failure(what, found=describe_user_error(error), fix="mend it there", code=ExitCode.USAGE)


def describe_user_error(error: BaseException, library: Path | None = None) -> str:
    """Describe the error and the last line of the user's own code that led to it.

    library: a folder whose code is not the user's, such as the package that called it.
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
    """Whether the frame's file belongs neither to this package nor to Python's import system."""
    return (
        not path.startswith("<frozen")
        and path != importlib.__file__
        and not Path(path).is_relative_to(Path(__file__).parent)
    )


def _import_module(module: str, what: str) -> Any:
    try:
        loaded = importlib.import_module(module)
        package = sys.modules[module.partition(".")[0]]
        origin = next(iter(getattr(package, "__path__", ())), None) or getattr(package, "__file__", None)
        _code_folders.update(Path(path).parent for path in (origin,) if path)
        return loaded
    except Failure:  # also raised by the handler of a stop signal
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise user_code_failure(f"{what}: an import in it is missing", error) from error
        _raise_factory_error(
            f"{what}: there is no module {error.name}",
            f"looked in {_last_search_folder()}",
            error.name,
            _sibling_modules(error.name),
            otherwise=("" if "." in error.name else f"put {error.name}.py into that folder, or ") + AS_IN_PYTHON,
        )
    except (Exception, SystemExit) as error:
        raise user_code_failure(f"{what}: the module fails when it is imported", error) from error


def _sibling_modules(module: str) -> list[str]:
    """The modules of the same package; for a top-level module, those of the user's folder but Python's and ours."""
    package = module.rpartition(".")[0]
    folders = getattr(sys.modules.get(package), "__path__", []) if package else sys.path[-1:]
    names = [f"{package}.{info.name}".removeprefix(".") for info in pkgutil.iter_modules(folders)]
    return [name for name in names if name not in OTHER_MODULES]


def _last_search_folder() -> str:
    """The last folder of sys.path: the config file's folder, if it was appended."""
    return sys.path[-1] if sys.path else "no folder: sys.path is empty"


def _raise_factory_error(
    what: str,
    problem: str,
    name: str = "",
    candidates: Iterable[str] = (),
    fix: str = "",
    otherwise: str = AS_IN_PYTHON,
) -> NoReturn:
    """otherwise: the fix if no candidate is like the name."""
    close = nearest_name(name, candidates)
    fix = fix or (f"write {close} instead of {name}" if close else otherwise)
    raise Failure(what, found=problem, expected=EXPECTED_MODULE, fix=fix, code=ExitCode.USAGE)


def _list_functions(listed: list[str]) -> str:
    return f"only {list_some(listed)}" if listed else "no function in it"
