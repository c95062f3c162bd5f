"""The code's own tables become docs/reference.md: config keys, environment variables, exit codes.

python docs/write_reference.py
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, get_type_hints

sys.path.insert(0, str(Path(__file__).parents[1]))

from entrypoint import ExitCode
from train.config import environment, load, schema
from train.config.load import describe_type, format_value
from train.config.schema import RunConfig

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "reference.md"
QUICKSTART: Final = ROOT / "configs" / "quickstart.yaml"
BEGIN, END = "<!-- begin of {}: written by docs/write_reference.py -->", "<!-- end of {} -->"
# What no table of the code says of a variable: what it is for. A test compares the names with the code.
MEANINGS: Final = tomllib.loads((ROOT / "docs" / "variables.toml").read_text())
# Keys that configs/quickstart.yaml leaves without a comment, because their name says it.
PLAIN: Final = {
    "optim.weight_decay": "part of the gradient with SGD and Adam, apart from it with AdamW",
    "optim.label_smoothing": "the share of the target that all classes get; not in evaluations",
    "train.epochs": "passes over the training samples",
    "eval.every_epochs": "epochs between two evaluations; one is at the end, too",
    "log.tensorboard": "write TensorBoard's files too",
}
# The error messages' words for a type and a range, and their short form in a table.
SHORT: Final = {
    r"a whole number": "integer",
    r"a number": "number",
    r"a list of whole numbers; from (\d+) to (\d+): .*": r"[height, width], \1 to \2",
    r"a mapping": "mapping",
    r"^one of ": "",
    r"a list of whole numbers or null; ": "null or ",
    r"a list of texts; ": "",
    r"; from (\d+) to (\d+)$": r", \1 to \2",
    r"; more than 0$": ", > 0",
    r"; more than 0, up to (\d+)$": r", > 0, up to \1",
    r"; (\d+) or more$": r", ≥ \1",
    r"; 0 or more, and less than 1$": ", ≥ 0 and < 1",
    r"text; a path that is not empty, without ~": "path without ~",
    r"text or null; a path that is not empty, without ~": "path without ~, or null",
    r"text(?: or null)?; (a.*)": r"\1",
}
Row = Sequence[str]


def table(head: Row, rows: Iterable[Row]) -> str:
    """A table of Markdown; no cell can end its row."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def keys(kind: Any = RunConfig, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any, Any]]:
    """(path, type, default) of every key that holds a value, in the order of the code."""
    found, defaults = [], kind()
    for name, hint in get_type_hints(kind).items():
        path = (*above, name)
        inner = hasattr(hint, "__dataclass_fields__")
        found += keys(hint, path) if inner else [(path, hint, getattr(defaults, name))]
    return found


def comments(path: Path = QUICKSTART) -> dict[str, str]:
    """What a commented configuration says beside each of its keys."""
    lines, text = load.read_yaml_file(path).lines, path.read_text().splitlines()
    return {".".join(key): said for key, number in lines.items() if (said := _comment(text, number - 1))}


def _comment(text: Sequence[str], at: int) -> str:
    """The comment of one line, and of the lines below it that hold nothing else."""
    parts = [text[at].partition(" #")[2].strip()]
    for line in text[at + 1 :] if parts[0] else ():
        if not re.match(r"\s+#", line):
            break
        parts.append(line.strip(" #"))
    return " ".join(parts)


def allowed(key: str, hint: Any) -> str:
    """Type and range in words; a rule that lists names says more than the type does."""
    rule = schema.RULES.get(key)
    names = [*schema.KNOWN_NAMES.get(key, ()), *filter(None, [schema.FACTORY_KEYS.get(key)])]
    listed = ", ".join(names) if key in ("optim.name", "optim.schedule", "eval.metric") else ""
    if listed or (rule and rule.expected.startswith(("one of", "none", "false"))):
        text = listed or (rule.expected if rule else "")
    else:
        text = f"{describe_type(hint)}; {rule.expected}" if rule else describe_type(hint)
    for words, short in SHORT.items():
        text = re.sub(words, short, text)
    return text


def config_rows() -> list[Row]:
    """A row for each key of the configuration."""
    said = comments()
    rows = []
    for path, hint, default in keys():
        key = ".".join(path)
        rows.append([f"`{key}`", f"`{format_value(default)}`", allowed(key, hint), said.get(key) or PLAIN[key]])
    return rows


def patterns() -> dict[str, list[str]]:
    """The variables that a training is not given, by what decides instead."""
    groups: dict[str, list[str]] = {}
    for name, why in environment.REMOVED_VARIABLES.items():
        groups.setdefault(why, []).append(name)
    return groups


def code_rows() -> list[Row]:
    """A row for each exit code. A test compares `requeue` with the job scripts."""
    return [[str(int(code)), f"`{code.name}`", code.meaning, "yes" if code.requeue else "no"] for code in ExitCode]


def variable_rows(entries: Mapping[str, str]) -> list[Row]:
    """A row for each variable; neighbours with the same meaning share one."""
    return [[_code(names), meaning] for meaning, names in groupby(entries, key=entries.__getitem__)]


def sections() -> dict[str, str]:
    """The text between each pair of the page's marks."""
    named = {title: table(("variable", "meaning"), variable_rows(entries)) for title, entries in MEANINGS.items()}
    removed = table(("not used", "why"), [[_code(names), why] for why, names in patterns().items()])
    return named | {
        "keys": table(("key", "default", "allowed", "meaning"), config_rows()),
        "removed": removed,
        "acting": _code((*environment.RECORDED_VARIABLES, *environment.PROXY_VARIABLES)) + ".",
        "codes": table(("code", "name", "meaning", "the job scripts requeue"), code_rows()),
    }


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def written(text: str) -> str:
    """The page with what the code says now between its marks."""
    for name, inside in sections().items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, after = re.split(f"{re.escape(begin)}|{re.escape(end)}", text)
        text = f"{before}{begin}\n{inside}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
