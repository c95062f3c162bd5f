"""The house rules: which module may import which, and that the README names commands that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from train.config.schema import RunConfig

ROOT = Path(__file__).parents[2]
PACKAGES = ("entrypoint", "train", "bench")
# The scripts in bench/peers are no part of the package: they import nothing of ours.
MODULES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__init__.py" and path.parent.name != "peers"
)
# The parts of each package, which are its folders and the modules beside them. A part imports only parts before it.
LAYERS = {
    "entrypoint": [
        "file_writer",
        "redaction",
        "console",
        "engines",
        "errors",
        "files",
        "run_errors",
        "job_script",
        "threads",
        "world",
        "handover",
        "hostlist",
        "platforms",
        "job",
        "images",
        "accelerators",
        "fabrics",
        "machine",
        "mounts",
        "options",
        "network",
        "pmi",
        "environment",
        "launchers",
        "plan",
        "exchange",
        "heartbeat",
        "tee",
        "preload",
        "stacks",
        "children",
        "hang",
        "monitor",
        "supervise",
        "launch",
        "doctor",
        "isolated",
        "__main__",
    ],
    "train": [
        "fault_injection",
        "names",
        "metrics",
        "rng",
        "files",
        "file_lock",
        "config",
        "fields",
        "plugin",
        "distributed",
        "tasks.labels",
        "data",
        "checkpoint",
        "evaluation",
        "tasks",
        "data.loader",
        "evaluation.validator",
        "models",
        "optim",
        "data_fit",
        "components",
        "logging",
        "parallel",
        "batch_size",
        "compilation",
        "state",
        "run",
        "loss_monitor",
        "checkpoint.checkpointer",
        "profiler",
        "hooks",
        "trainer",
        "rank_context",
        "build",
        "session",
        "line_profiling",
        "report",
        "inference",
        "worker",
        "cli",
        "__main__",
    ],
    "bench": [
        "estimates",
        "measurements",
        "processes",
        "training",
        "harness",
        "blocks",
        "worker",
        "ranks",
        "comm",
        "scaling",
        "sweep",
        "targets",
        "path_calls",
        "feed",
        "checkpoint_blocks",
        "data_profile",
        "step",
        "photos",
        "input",
        "start",
        "checkpoint",
        "report",
        "write_page",
        "__main__",
    ],
}
ALL = re.search(r"__all__ = (\[.*?\])", (ROOT / "entrypoint/__init__.py").read_text(), re.S)
OFFERED = set(ast.literal_eval(ALL[1] if ALL else "[]"))
# Where processes begin: what these read of the world goes on as an argument.
FRONT_DOORS = ("__main__", "worker", "isolated", "allreduce_check", "ranks", "write_page")
# What the parent process must never load: it starts in milliseconds.
HEAVY_FREE = ("torch", "numpy", "accelerate", "torchvision")


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of the module's syntax tree; the module itself is the first."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> list[tuple[str, list[str]]]:
    """(module, names) of every import statement, also those inside functions."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", [alias.name for alias in node.names]))
    return found


def dotted(path: Path) -> str:
    """train/data/image_folder.py is data.folder of its package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@cache
def modules_of(package: str) -> set[str]:
    """All modules of a package, dotted."""
    return {dotted(path) for path in MODULES if package_of(path) == package}


def siblings(path: Path) -> set[str]:
    """The modules of its own package that a module imports, dotted."""
    package = package_of(path)
    known = modules_of(package)
    named = {name.removeprefix(package).removeprefix(".") for name in imported_names(path) if under(package, name)}
    return named & known


def imported_names(path: Path) -> set[str]:
    """Everything imported, as if each name were a module."""
    found = imports(path)
    return {module for module, _ in found} | {f"{module}.{name}" for module, names in found for name in names}


def under(package: str, name: str) -> bool:
    return name.split(".")[0] == package


def is_import_of_bench(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    return any(under("bench", name) for name in [*names, getattr(node, "module", None) or ""])


# They need more than the rest of their folders: one saves a training's state, two call a task, one reads raw labels.
PARTS_IN_FOLDERS = {"checkpoint.checkpointer", "data.loader", "evaluation.validator", "tasks.labels"}


def part_of(module: str) -> str:
    """The folder of a package that a module is in, or the module itself where it is in none or is a part of its own."""
    return module if module in PARTS_IN_FOLDERS else module.partition(".")[0]


def is_a_front_door(path: Path) -> bool:
    """Commands print what they were asked for."""
    return path.stem in FRONT_DOORS or path.parent.name == "cli"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_parts_import_only_parts_before_them() -> None:
    wrong = [
        f"{name_of(path)} imports {name}"
        for path in MODULES
        for name in siblings(path)
        if part_of(name) != part_of(dotted(path))
        if LAYERS[package_of(path)].index(part_of(name)) > LAYERS[package_of(path)].index(part_of(dotted(path)))
    ]
    assert wrong == []


def test_the_table_of_layers_lists_the_parts_that_exist() -> None:
    for package in PACKAGES:
        assert sorted(LAYERS[package]) == sorted({part_of(module) for module in modules_of(package)})


def test_no_module_imports_itself_by_way_of_others() -> None:
    imported = {f"{package_of(path)}.{dotted(path)}": siblings(path) for path in MODULES}
    graph = {module: {f"{module.partition('.')[0]}.{name}" for name in names} for module, names in imported.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_entrypoint_knows_nothing_of_training() -> None:
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in MODULES
        for module, _ in imports(path)
        if package_of(path) == "entrypoint" and module.split(".")[0] in ("train", "yaml", *HEAVY_FREE)
    ]
    assert wrong == []


def test_only_the_commands_that_measure_or_show_a_benchmark_import_it() -> None:
    """And only where they are called: every other command starts without it."""
    others = [path for path in MODULES if package_of(path) != "bench"]
    importers = {path for path in others if any(map(is_import_of_bench, nodes(path)))}
    assert {name_of(path) for path in importers} == {f"train/cli/{name}.py" for name in ("bench", "data", "report")}
    assert not [path for path in importers if any(map(is_import_of_bench, at_import(nodes(path)[0])))]


def test_train_uses_only_what_entrypoint_offers() -> None:
    wrong = [
        f"{name_of(path)} imports {module}: {', '.join(names)}"
        for path in MODULES
        for module, names in imports(path)
        if package_of(path) == "train" and module.split(".")[0] == "entrypoint"
        if module != "entrypoint" or not set(names) <= OFFERED
    ]
    assert wrong == []


def test_train_names_no_variable_of_a_scheduler() -> None:
    """`entrypoint.JobInfo` says what a scheduler's job is; a new scheduler is one record in entrypoint/platforms.py."""
    variable = re.compile(r"\b(?:SLURMD?|PBS|LSB|SGE|FLUX|COBALT|_CONDOR)_[A-Z]*")
    wrong = [
        f"{name_of(path)}: {name}"
        for path in MODULES
        if package_of(path) == "train"
        for name in variable.findall(path.read_text())
    ]
    assert wrong == []


def test_train_reads_what_its_parent_says_from_the_handover() -> None:
    """Except what users may set too, and what `train` itself tells its ranks or its job scripts say."""
    meanings = tomllib.loads((ROOT / "docs" / "variables.toml").read_text())
    wrong = {
        f"{name_of(path)}: {name}"
        for path in MODULES
        if package_of(path) == "train"
        for name in re.findall(r"\bENTRYPOINT_[A-Z_]+", path.read_text())
        if name not in meanings["yours"] and name not in ("ENTRYPOINT_TYPED", "ENTRYPOINT_IMAGE_DIGEST")
    }
    assert wrong == set()


def test_every_module_opens_with_a_sentence() -> None:
    assert [name_of(path) for path in MODULES if not ast.get_docstring(nodes(path)[0])] == []


# Who writes a file itself, instead of through `file_writer.replace_file`, and why that cannot hit another's file.
DIRECT_WRITERS = {
    "entrypoint/file_writer.py": "replace_file itself",
    "entrypoint/console.py": "/dev/null, and the process's own streams",
    "entrypoint/tee.py": "logs that grow, opened through no link",
    "entrypoint/doctor/paths.py": "tries the file system, in a folder that mkdtemp made",
    "train/file_lock.py": "O_EXCL is the lock",
    "train/logging/tensorboard.py": "a file that grows, with a new name",
    "train/data/shards/staging.py": "the lock in a folder that mkdtemp made",
    "train/models/fetch.py": "in a folder that mkdtemp made",
    "train/distributed/allreduce_check.py": "in the folder of the doctor or of the bench",
    "train/checkpoint/store.py": "renames folders",
    "train/inference/export.py": "renames a folder",
    "train/run/record.py": "moves results of this run",
    "bench/processes.py": "in the bench's own folder",
    "bench/photos.py": "in a folder that mkdtemp made",
    "bench/write_page.py": "pages of this repository",
}


def writes_a_file(node: ast.AST) -> bool:
    """Whether it is a call that opens a file for writing, or renames one."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    words = [value.value for value in ast.walk(node) if isinstance(value, ast.Constant)]
    if name in ("open", "fdopen"):
        is_packed = "gzip" in ast.unparse(node.func) or "tarfile" in ast.unparse(node.func)  # into an open stream
        has_mode = any(isinstance(word, str) and re.fullmatch(r"[wax]b?\+?b?", word) for word in words)
        return (has_mode and not is_packed) or "O_CREAT" in ast.unparse(node)
    renames = ast.unparse(node.func) in ("os.replace", "os.rename", "os.link", "os.symlink", "shutil.move")
    return renames or name in ("write_text", "write_bytes", "save_file", "tofile", "mkstemp", "copyfile", "copy2")


def test_files_are_written_by_one_function() -> None:
    direct = {name_of(path) for path in MODULES if any(map(writes_a_file, nodes(path)))}
    assert direct == {*DIRECT_WRITERS}


# Names of the first months, which say nothing to whoever did not write them -> what to write instead. They may not
# come back, for a variable, parameter, attribute, function, class or module.
PRIVATE_WORDS = {
    "todo": "trainer",
    "seat": "rank context",
    "bell": "stop signals",
    "settle": "wait",
    "lap": "epoch statistics",
    "tally": "running mean, or what is counted",
    "wishes": "vote",
    "course": "batch sampler",
    "oddities": "warnings",
    "verdict": "result or decision",
    "told": "message, values or facts",
    "said": "message or line",
    "found": "what was found: checkpoint, files, gpus",
    "wanted": "requested, config, or what it is",
    "asked": "requested, options, or what it is",
    "given": "arguments, or what it is",
    "made": "what was made: parser, model",
    "kind": "dtype, device, or what it is",
    "place": "path, folder, rank or address",
    "there": "available, or what it is",
    "here": "local, or what it is",
    "known": "what is known: published, described",
    "whole": "all, complete, or batch_size",
    "mine": "own_..., or what it is",
}
# A function or class that is called so; a variable may be.
PRIVATE_CALLS = {
    "now": "loop state",
    "watch": "stop signals or supervision",
    "look": "the verb: read, choose, check",
    "take": "read, acquire or train_step",
    "noted": "logged or recorded",
    "figures": "metrics or measurements",
    "of": "a verb and its object",
}
# Of a failure's block and of run.json: users read these words.
WRITTEN_FIELDS = {("entrypoint/errors.py", "found"), ("train/compilation.py", "place")}
# Of the config: `data.name` is a key.
SECTIONS = {field.name for field in fields(RunConfig)}


def identifiers(path: Path) -> list[tuple[str, bool]]:
    """Each name that a module defines, and whether it is that of a function, class or module."""
    found = [(path.stem, True)]
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append((node.name, True))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append((node.id, False))
        elif isinstance(node, ast.arg):
            found.append((node.arg, False))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.append((node.attr, False))
    return found


def test_nothing_has_a_private_word_for_a_name() -> None:
    wrong = {
        f"{name_of(path)}: {name}: {instead}"
        for path in MODULES
        for name, is_called in identifiers(path)
        if (name_of(path), name) not in WRITTEN_FIELDS
        if (instead := (PRIVATE_WORDS | (PRIVATE_CALLS if is_called else {})).get(name.lower().strip("_")))
    }
    assert sorted(wrong) == []


def test_a_name_in_backticks_with_its_module_exists() -> None:
    """`store.verify_sizes` in a comment or docstring: a rename must not leave the old one behind."""
    defined: dict[str, set[str]] = {}
    for path in MODULES:
        names = {node.id for node in nodes(path) if isinstance(node, ast.Name)}
        names |= {node.name for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        defined.setdefault(path.stem, set()).update(names)
    wrong = [
        f"{name_of(path)}: {module}.{name}"
        for path in MODULES
        for module, name in re.findall(r"`([a-z_]+)\.([A-Za-z_]+)`", path.read_text())
        if module in defined and module not in SECTIONS and name not in {"py", "json"} and name not in defined[module]
    ]
    assert wrong == []


def test_only_front_doors_read_the_environment_and_print() -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        if not is_a_front_door(path)
        for node in nodes(path)
        if (isinstance(node, ast.Attribute) and node.attr == "environ" and ast.unparse(node) == "os.environ")
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print")
    ]
    assert wrong == []


COMMAND = re.compile(
    r"\b(train (check|where|find-lr|eval|predict|export|data \w+|weights fetch|bench|report)|"
    r"entrypoint (doctor|run|show|job-script))\b"
)
NAMED_BY_TASK = (  # these name a command, and are no line to type, or come from a process that knows no typed one
    "entrypoint/world.py",
    "entrypoint/tee.py",
    "entrypoint/exchange.py",
    "train/distributed/allreduce_check.py",
)


def is_fix(node: ast.AST) -> bool:
    targets = [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []
    return (isinstance(node, ast.keyword) and node.arg == "fix") or any(
        name.lower().endswith("fix") for name in targets
    )


def test_a_command_in_a_fix_is_written_by_the_function_that_knows_how_it_was_typed() -> None:
    wrong = []
    for path in MODULES:
        for node in filter(is_fix, nodes(path)) if name_of(path) not in NAMED_BY_TASK else ():
            calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
            right = {part for call in calls if ast.unparse(call.func) == "shell_command" for part in ast.walk(call)}
            texts = [part for part in ast.walk(node) if isinstance(part, ast.Constant) and part not in right]
            wrong += [f"{name_of(path)}:{text.lineno}" for text in texts if COMMAND.search(str(text.value))]
    assert wrong == []


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: all but the insides of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield child
            yield from at_import(child)


def test_no_command_is_written_before_the_program_knows_how_it_was_typed() -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        for node in at_import(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("shell_command", "pip_command")
    ]
    assert wrong == []


def readme_commands() -> list[str]:
    """The command lines in the README's shell blocks."""
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def test_the_readmes_commands_name_what_exists() -> None:
    for command in readme_commands():
        words = command.split()
        for word in words:
            if word.startswith(("launch/", "configs/", "docs/", "./launch/")):
                assert (ROOT / word).exists(), command
        if words[0] == "make":
            assert set(words[1:]) - {w for w in words if "=" in w} <= make_targets(), command


def test_the_readme_shows_commands() -> None:
    assert len(readme_commands()) >= 5
