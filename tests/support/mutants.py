"""Puts one small error at a time into covered lines of the code, and reports which tier of tests notices it.

    make test-all                                            records which test runs which line, in .coverage and build/
    python tests/support/mutants.py [--count 60] [--seed 1]  draws errors, tests each, and prints one JSON object a line

It edits the checkout's own files, one after the other, and restores each; it begins only where git sees no change.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
NOTES = BUILD / "tests"  # .WORKER.jsonl: what `make test-all` notes of each test
LIMIT_S = 300  # of the tests of one tier for one mutant
# Of an error in lines that hundreds of tests run, the quickest ones of each tier are asked.
MOST_TESTS = 150
TIERS = ("test", "slow", "reliability")

OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One error: in which file and line, of which kind, and the statement before and after."""

    file: str
    line: int
    kind: str
    before: str
    after: str
    source: str  # of the whole file, with the error


# --- the record of make test-all -----------------------------------------------------------------------------------


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """As a pytest plugin, where coverage is measured: name the test to it, and note the test's tier and seconds."""
    measured = coverage.Coverage.current()
    assert measured is not None
    measured.switch_context(item.nodeid)
    begun, cpu = time.monotonic(), _cpu()
    yield
    measured.switch_context("")
    folder = item.path.relative_to(ROOT / "tests").parts[0]
    tier = folder if folder in ("image", "cluster", "reliability") else "test"
    note = {
        "test": item.nodeid,
        "tier": "slow" if tier == "test" and item.get_closest_marker("slow") else tier,
        "seconds": round(time.monotonic() - begun, 3),
        "cpu": round(_cpu() - cpu, 3),
    }
    NOTES.parent.mkdir(parents=True, exist_ok=True)
    with NOTES.with_suffix(f".{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.jsonl").open("a") as file:
        file.write(json.dumps(note) + "\n")


# --- the draw --------------------------------------------------------------------------------------------------------


def tests_by_line(path: Path, data: coverage.CoverageData) -> dict[int, set[str]]:
    """Line -> the tests that run it.

    A child's context ends with the phase, as in `test_x (call)`, and begins with that of the process that forked it.
    """
    found: dict[int, set[str]] = {}
    for line, contexts in data.contexts_by_lineno(str(path)).items():
        names = {re.sub(r"^.*\|(?=tests/)| \((setup|call|teardown)\)$", "", name) for name in contexts}
        if names - {""}:
            found[line] = names - {""}
    return found


def mutations(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, ast.stmt]]:
    """(kind, statement, changed statement) for every error that can be made in a function's statements."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    statements = {id(s): s for f in functions for s in ast.walk(f) if isinstance(s, ast.stmt) and s is not f}
    for statement in statements.values():
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        if isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.Raise | ast.Return):
            yield "deleted statement", statement, ast.copy_location(ast.Pass(), statement)
        if isinstance(statement, ast.If | ast.While):
            changed = copy.deepcopy(statement)
            changed.test = ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=changed.test), changed.test)
            yield "condition", statement, changed
        yield from _expressions(statement)


def _expressions(statement: ast.stmt) -> Iterator[tuple[str, ast.stmt, ast.stmt]]:
    own = [node for node in _own(statement)]
    for index, node in enumerate(own):
        for kind in ("operator", "constant"):
            changed = copy.deepcopy(statement)
            twin = list(_own(changed))[index]
            if kind == "operator" and _swap_operator(twin):
                yield kind, statement, changed
            if kind == "constant" and isinstance(node, ast.Constant) and _swap_constant(twin):
                yield kind, statement, changed


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without those of statements inside it."""
    waiting = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr | ast.withitem)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.JoinedStr):  # words of messages
            waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def _swap_operator(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        node.ops[0] = OPERATORS[type(node.ops[0])]()
        return True
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS:
        node.op = OPERATORS[type(node.op)]()
        return True
    return False


def _swap_constant(node: ast.AST) -> bool:
    assert isinstance(node, ast.Constant)
    if isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node.value, int | float):
        node.value += 1
    else:
        return False  # most texts are messages
    return True


def mutants(path: Path, covered: dict[int, set[str]]) -> dict[str, list[Mutant]]:
    """Kind -> all mutants of a file in covered lines."""
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    found: dict[str, list[Mutant]] = defaultdict(list)
    for kind, before, after in mutations(ast.parse(source)):
        if before.lineno not in covered:
            continue
        head = 0 if isinstance(before, ast.If | ast.While | ast.For | ast.With | ast.Try) else None
        last = (before.end_lineno or before.lineno) if head is None else before.body[0].lineno - 1  # type: ignore[attr-defined]
        text = ast.unparse(ast.fix_missing_locations(after))
        text = text if head is None else text[: _head(text)]
        indent = " " * before.col_offset
        changed = "".join(indent + line + "\n" for line in text.splitlines())
        is_elif = lines[before.lineno - 1].lstrip().startswith("elif")
        if is_elif or last < before.lineno:
            continue
        mutated = [*lines[: before.lineno - 1], changed, *lines[last:]]
        with contextlib.suppress(SyntaxError):
            ast.parse("".join(mutated))
            shown = "".join(lines[before.lineno - 1 : last]).strip()
            file = str(path.relative_to(ROOT))
            found[kind].append(
                Mutant(
                    file=file,
                    line=before.lineno,
                    kind=kind,
                    before=shown,
                    after=changed.strip(),
                    source="".join(mutated),
                )
            )
    return found


def _head(text: str) -> int:
    """Where the first line of a compound statement ends."""
    return text.index("\n") if "\n" in text else len(text)


def drawn(count: int, seed: int, data: coverage.CoverageData) -> list[Mutant]:
    """`count` mutants of different modules, the kinds in turn."""
    draw = random.Random(seed)
    paths = sorted(path for package in ("entrypoint", "train") for path in (ROOT / package).rglob("*.py"))
    draw.shuffle(paths)
    kinds = ("operator", "constant", "condition", "deleted statement")
    chosen: list[Mutant] = []
    for path in paths:
        offered = mutants(path, tests_by_line(path, data))
        next_kind = kinds[len(chosen) % len(kinds)]
        of_kind = offered.get(next_kind) or [mutant for kind in kinds for mutant in offered.get(kind, [])]
        if of_kind:
            chosen.append(draw.choice(of_kind))
        if len(chosen) == count:
            break
    return chosen


# --- the tests -------------------------------------------------------------------------------------------------------


def tiers_and_seconds() -> dict[str, tuple[str, float]]:
    """Test -> (tier, seconds), as `make test-all` noted them."""
    notes = [json.loads(line) for path in BUILD.glob(f"{NOTES.name}.*.jsonl") for line in path.read_text().splitlines()]
    return {note["test"]: (note["tier"], note["seconds"]) for note in notes}


def noticed(tests: list[str]) -> str:
    """Whether one of the tests fails: "yes", "no" or "not in time"."""
    if not tests:
        return "no"
    BUILD.mkdir(parents=True, exist_ok=True)
    listed = BUILD / "chosen"
    listed.write_text("\n".join(tests))
    line = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"@{listed}"]
    process = subprocess.Popen(
        line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    try:
        return "no" if process.wait(LIMIT_S) == 0 else "yes"
    except subprocess.TimeoutExpired:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()
        return "not in time"


def run(count: int, seed: int, first: int) -> int:
    """Test each mutant by the tests of its line, tier by tier until one notices it."""
    changed = ["git", "status", "--porcelain", "--untracked-files=no"]
    if subprocess.run(changed, cwd=ROOT, capture_output=True, text=True, check=True).stdout:
        print("ERROR: this checkout has changes\n  fix: commit them, or use a clean clone", file=sys.stderr)
        return 64
    data = coverage.CoverageData(str(ROOT / ".coverage"))
    data.read()
    known = tiers_and_seconds()
    seen: dict[str, int] = defaultdict(int)
    for number, mutant in enumerate(drawn(count, seed, data)):
        if number < first:
            continue
        path = ROOT / mutant.file
        original = path.read_text()
        names = [name for name in tests_by_line(path, data)[mutant.line] if name in known]
        by_tier = {
            tier: sorted((n for n in names if known[n][0] == tier), key=lambda n: known[n][1])[:MOST_TESTS]
            for tier in TIERS
        }
        answer, tier = "no", ""
        try:
            path.write_text(mutant.source)
            for tier in TIERS:
                answer = noticed(by_tier[tier])
                if answer == "yes":
                    break
        finally:
            path.write_text(original)
        seen[tier if answer == "yes" else "none"] += 1
        facts = {"mutant": number, "file": mutant.file, "line": mutant.line, "kind": mutant.kind}
        texts = {"before": mutant.before[:120], "after": mutant.after[:120]}
        tests = {tier: len(found) for tier, found in by_tier.items()}
        print(
            json.dumps(facts | texts | {"tests": tests, "noticed_by": tier if answer == "yes" else answer}), flush=True
        )
    print(json.dumps({"seed": seed, "mutants": sum(seen.values()), "noticed_by": seen}))
    return 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="begin with this one: go on where a run was ended")
    asked = parser.parse_args()
    return run(asked.count, asked.seed, asked.first)


if __name__ == "__main__":
    sys.exit(main())
