"""The house rules that a reader cannot see at a glance: layers, mirrors, sizes, and the README's commands."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("entrypoint", "train")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py")
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TABLES = ROOT / "tests" / "support" / "bad"  # a line or more for each input that is refused
# What each part of a package may import of it, so that data flows one way.
LAYERS = tomllib.loads((ROOT / "tests" / "layers.toml").read_text())
ALL = re.search(r"__all__ = (\[.*?\])", (ROOT / "entrypoint/__init__.py").read_text(), re.S)
OFFERED = set(ast.literal_eval(ALL[1] if ALL else "[]"))
# Where processes begin: what these read of the world goes on as an argument.
FRONT_DOORS = ("__main__", "worker", "isolated")
# What the parent process must never load: it starts in milliseconds.
HEAVY_FREE = ("torch", "numpy", "accelerate", "torchvision")


def imports(path: Path) -> list[tuple[str, list[str]]]:
    """(module, names) of every import statement, also those inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", [alias.name for alias in node.names]))
    return found


def functions(tree: ast.Module) -> list[tuple[str, int]]:
    """(name, lines) of each."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in found]


def dotted(path: Path) -> str:
    """train/data/folder.py is data.folder of its package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def siblings(path: Path) -> set[str]:
    """The modules of its own package that a module imports, dotted."""
    package = package_of(path)
    known = {dotted(other) for other in MODULES if package_of(other) == package}
    named = {name.removeprefix(package).removeprefix(".") for name in imported_names(path) if under(package, name)}
    return named & known


def imported_names(path: Path) -> set[str]:
    """Everything imported, as if each name were a module."""
    found = imports(path)
    return {module for module, _ in found} | {f"{module}.{name}" for module, names in found for name in names}


def under(package: str, name: str) -> bool:
    return name.split(".")[0] == package


def may_import(package: str, importer: str, imported: str) -> bool:
    """Whether the table of layers allows it."""
    layers = LAYERS[package]
    folder, other = importer.partition(".")[0], imported.partition(".")[0]
    if "order" in layers and folder != other:
        return bool(layers["order"].index(other) < layers["order"].index(folder))
    levels = layers[folder] if "order" in layers else layers
    return bool(levels[imported.rpartition(".")[2]] < levels[importer.rpartition(".")[2]])


def is_a_front_door(path: Path) -> bool:
    """Commands print what they were asked for."""
    return path.stem in FRONT_DOORS or path.parent.name == "commands"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down_the_layers(path: Path) -> None:
    mine = dotted(path)
    wrong = {name for name in siblings(path) if not may_import(package_of(path), mine, name)}
    assert not wrong, f"{mine} imports {wrong} of the same level or above"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_table_of_layers_lists_the_modules_that_exist(package: str) -> None:
    layers = LAYERS[package]
    folders = {name: levels for name, levels in layers.items() if isinstance(levels, dict)}
    listed = {f"{folder}.{module}" for folder, levels in folders.items() for module in levels}
    listed |= set(layers.get("order", layers)) - set(folders)
    assert listed == {dotted(path) for path in MODULES if package_of(path) == package}


@pytest.mark.parametrize("path", [p for p in MODULES if package_of(p) == "entrypoint"], ids=name_of)
def test_entrypoint_knows_nothing_of_training(path: Path) -> None:
    assert not [m for m, _ in imports(path) if m.split(".")[0] in ("train", "yaml", *HEAVY_FREE)]


@pytest.mark.parametrize("path", [p for p in MODULES if package_of(p) == "train"], ids=name_of)
def test_train_uses_only_what_entrypoint_offers(path: Path) -> None:
    for module, names in imports(path):
        if module.split(".")[0] == "entrypoint":
            assert module == "entrypoint", f"{module} is not offered"
            assert set(names) <= OFFERED


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_has_a_test_of_the_same_name(path: Path) -> None:
    mirror = ROOT / "tests" / path.relative_to(ROOT).parent / f"test_{path.stem.strip('_')}.py"
    assert mirror.exists()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_rooms_stay_small(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert len(path.read_text().splitlines()) <= 300
    assert [name for name, lines in functions(tree) if lines > 60] == []
    assert ast.get_docstring(tree), "one sentence opens each module"


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_files_of_tests_stay_small_but_for_tables(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert len(path.read_text().splitlines()) <= 400 or path.is_relative_to(TABLES)
    assert [name for name, lines in functions(tree) if lines > (25 if name.startswith("test_") else 60)] == []
    assert ast.get_docstring(tree), "one sentence opens each file"


def test_ninety_nine_of_a_hundred_tests_have_at_most_fifteen_lines() -> None:
    found = [one for path in TESTS for one in functions(ast.parse(path.read_text())) if one[0].startswith("test_")]
    assert len([name for name, lines in found if lines > 15]) <= len(found) / 100


@pytest.mark.parametrize("path", [path for path in MODULES if not is_a_front_door(path)], ids=name_of)
def test_only_front_doors_read_the_environment_and_print(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    assert not [n for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n) == "os.environ"]
    assert not [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "print"]


def readme_commands() -> list[str]:
    """The command lines in the README's shell blocks."""
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("command", readme_commands())
def test_the_readmes_commands_name_what_exists(command: str) -> None:
    words = command.split()
    for word in words:
        if word.startswith(("launch/", "configs/", "docs/", "./launch/")):
            assert (ROOT / word).exists(), word
    if words[0] == "make":
        assert set(words[1:]) - {w for w in words if "=" in w} <= make_targets()


def test_the_readme_shows_commands() -> None:
    assert len(readme_commands()) >= 5
