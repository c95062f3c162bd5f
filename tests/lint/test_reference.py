"""docs/reference.md is what its generator writes, and no key, variable or exit code of the code is missing in it."""

from __future__ import annotations

import ast
import re
import sys
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import pytest

from entrypoint import ExitCode
from entrypoint.platforms import VARIABLES
from train.config import environment
from train.config.schema import KEYS

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import write_reference as reference

ROOT = reference.ROOT
TEXT = reference.PAGE.read_text()
NAMES = [name for entries in reference.MEANINGS.values() for name in entries]
# Begins of names that are variables wherever they stand in the code; others are where the environment is asked.
OURS = r"(ENTRYPOINT|SLURMD?|PET|PMIX?|OMPI|MPI|MV2|TORCHELASTIC|APPTAINER|SINGULARITY|MASTER|LOCAL|WORLD)_[A-Z0-9_]+"
PREFIXES = ("ENTRYPOINT_", "SLURM_")  # in code that looks for all names of that kind


def strings(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def asked(tree: ast.AST) -> set[str]:
    """The words inside every expression that asks an environment: environ["X"], environ.get("X"), "X" in environ."""
    found = [n for n in ast.walk(tree) if isinstance(n, (ast.Subscript, ast.Call, ast.Compare))]
    return {word for node in found if "environ" in names(node) for word in strings(node)}


def names(tree: ast.AST) -> set[str]:
    """What an expression looks things up in: environ, self._environ, os.environ."""
    nodes = list(ast.walk(tree))
    attributes = {node.attr.strip("_") for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


@lru_cache
def in_code() -> tuple[set[str], set[str]]:
    """(all strings, those that must be variables) of the packages."""
    trees = [ast.parse(path.read_text()) for name in ("entrypoint", "train") for path in (ROOT / name).rglob("*.py")]
    every = set[str]().union(*map(strings, trees))
    spelled = {word for tree in trees for word in asked(tree) if re.fullmatch(r"[A-Z][A-Z0-9_]*_[A-Z0-9_]+", word)}
    return every, spelled | {word for word in every if re.fullmatch(OURS, word)}


def in_scripts() -> set[str]:
    """What a job script gives a default to: ${X:-...} and its relatives."""
    scripts = [*(ROOT / "launch").glob("*.sh"), ROOT / "entrypoint" / "job_functions.sh"]
    text = "".join(path.read_text() for path in scripts)
    return set(re.findall(r"\$\{([A-Z_]+):?[-=+]", text))


def handled(name: str) -> bool:
    """Whether the table of what is taken out has it."""
    return any(fnmatchcase(name, pattern) for pattern in environment.REMOVED_VARIABLES)


def test_the_pages_are_as_their_writer_leaves_them() -> None:
    texts = [page.read_text() for page in reference.PAGES]
    assert list(map(reference.written, texts)) == texts, "run `make reference`"


def test_each_table_stands_on_one_page() -> None:
    text = "".join(page.read_text() for page in reference.PAGES)
    assert {text.count(reference.BEGIN.format(name)) for name in reference.sections()} == {1}


def test_every_key_has_a_row_with_a_meaning() -> None:
    rows = {row[0].strip("`"): row for row in reference.config_rows()}
    assert list(rows) == list(KEYS)
    assert all(row[2] and len(row[3]) > 3 for row in rows.values())


def test_the_quickstart_says_the_meanings_of_its_keys() -> None:
    text = reference.QUICKSTART.read_text()
    assert reference.commented(text) == text, "run `make reference`"


def test_an_old_comment_is_replaced_with_all_its_lines_and_other_comments_stay() -> None:
    text = "# mine\neval:\n  flip: true # turned\n             # around\n"
    lines = reference.commented(text).splitlines()
    assert lines == ["# mine", "eval:", f"  flip: true              # {KEYS['eval.flip'].meaning}"]


def test_no_variable_stands_twice() -> None:
    assert len(NAMES) == len(set(NAMES)) > 50


def test_every_variable_of_the_code_is_told() -> None:
    found = in_code()[1] | {name for name in VARIABLES if not name.startswith("/")}
    assert {"SLURM_PROCID", "ENTRYPOINT_DEADLINE", "XDG_CACHE_HOME"} <= found
    missing = {name for name in found if name not in NAMES and not handled(name) and name not in PREFIXES}
    assert not missing, f"say in docs/variables.toml what they are for: {sorted(missing)}"


def test_every_variable_of_the_job_scripts_is_told() -> None:
    assert len(found := in_scripts()) > 10
    assert not found - set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_that_is_told_is_in_the_code_or_a_job_script(name: str) -> None:
    options = {"ENTRYPOINT_DEVICE", "ENTRYPOINT_PROCS_PER_NODE"}  # made from the option's name
    scripts = [*(ROOT / "launch").glob("*.sh"), ROOT / "entrypoint" / "job_functions.sh"]
    text = "".join(path.read_text() for path in scripts)
    assert name in in_code()[0] | options or re.search(rf"\b{name}\b", text)


def test_every_variable_that_is_taken_out_is_told() -> None:
    assert all(f"`{name}`" in TEXT for name in environment.REMOVED_VARIABLES)


def test_every_exit_code_is_told_with_its_fate() -> None:
    fates = {int(code): fate for code, fate in re.findall(r"^\| (\d+) \| `[A-Z_]+` \| .+ \| (yes|no) \|$", TEXT, re.M)}
    assert set(fates) == set(ExitCode)
    assert {code for code, fate in fates.items() if fate == "yes"} == {code for code in ExitCode if code.requeue}
