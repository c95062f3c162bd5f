"""From YAML 1.2 text to plain values, each with its line: nothing is executed, repeated or expanded without bound.

PyYAML reads YAML 1.1, where `3e-4` is text, `no` is false, `0777` is 511 and `12:30:00` is 45000.
"""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from errno import EACCES
from pathlib import Path
from typing import Any, NoReturn

import yaml

from entrypoint import ExitCode, Failure, unseen

# A configuration has about 60 values. An anchor bomb of 80 aliases would otherwise become 9**8 values.
MAX_BYTES, MAX_NODES, MAX_ALIASES, MAX_DEPTH = 256 * 1024, 10_000, 100, 20
TAG = "tag:yaml.org,2002:"
WRITING = "spaces (no tabs) indent, `key: value` with a space, text with : # @ { [ in quotes"
Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a text says: dict, list, str, int, float, bool or None; and for every key path its line, counted from 1."""

    value: Any
    lines: Mapping[Keys, int]


# Core schema of YAML 1.2 (section 10.3.2), except that a number with leading zeros stays text: readers disagree on it.
SCALARS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", "~nN", lambda _: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (r"[-+]?(0|[1-9][0-9]{0,17})|0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}", "-+0123456789", lambda text: int(text, 0)),
    "float": (
        r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        lambda text: float(re.sub(r"\.([iInN])", r"\1", text)),
    ),
}


class Loader(yaml.SafeLoader):
    """PyYAML's composer with the scalars of 1.2, and with caps on nesting, nodes and aliases."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name
        self.nodes = self.aliases = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.nodes, self.depth = self.nodes + 1, self.depth + 1
        self.aliases += self.check_event(yaml.AliasEvent)
        if self.nodes > MAX_NODES or self.aliases > MAX_ALIASES or self.depth > MAX_DEPTH:
            too_much(self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


Loader.yaml_implicit_resolvers = {}  # none of 1.1's; the dumper keeps those, and gets ours as well
for _name, (_pattern, _first, _) in SCALARS.items():
    for _side in (Loader, Dumper):
        _side.add_implicit_resolver(TAG + _name, re.compile(f"^(?:{_pattern})$"), [*_first, ""])


_NO_FILE = "give the path of a YAML file, or leave --config out to train the quickstart"


def _other_ending(path: Path) -> Path | None:
    """The file of this name that ends in the other of .yaml and .yml, or in one of them where this has none."""
    found = (path.with_suffix(ending) for ending in (".yaml", ".yml") if path.suffix in ("", ".yaml", ".yml"))
    return next((file for file in found if file.is_file()), None)


def read_file(path: Path) -> Document:
    """The document in a file.

    Raises:
        Failure: NO_INPUT if there is none; USAGE if it is no YAML or too big; SECURITY if it asks for Python objects.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # asked before opening, which would wait for a pipe's other end
            fix = "give a regular file: each process reads it once more, which a pipe or a folder does not allow"
            raise Failure(f"--config {path} is not a regular file", fix=fix, code=ExitCode.USAGE)
        with path.open("rb") as file:
            return read_text(file.read(MAX_BYTES + 1).decode("utf-8-sig"), str(path))
    except FileNotFoundError as error:
        near = _other_ending(path)
        fix = f"write --config {shlex.quote(str(near))}" if near else _NO_FILE
        missing = Failure(
            f"--config {path} does not exist", found=f"looked in {Path.cwd()}", fix=fix, code=ExitCode.NO_INPUT
        )
        raise (unseen("--config", path) or missing) from error
    except OSError as error:
        fix = f"make it readable for this user: chmod +r {path}" if error.errno == EACCES else "correct the path"
        raise Failure(f"--config {path} cannot be read: {error.strerror}", fix=fix, code=ExitCode.USAGE) from error
    except UnicodeDecodeError as error:
        fix = "save it as UTF-8"
        raise Failure(f"--config {path} is not UTF-8 text", fix=fix, code=ExitCode.USAGE) from error


def read_text(text: str, name: str) -> Document:
    """The document in `text`; `name` says in errors where it was found."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        fix = "give a configuration, not a data file"
        raise Failure(f"{name} is larger than {MAX_BYTES // 1024} KiB", fix=fix, code=ExitCode.USAGE)
    try:
        root = Loader(text, name).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        refuse(f"not valid YAML: {error.problem}", mark, fix=f"mend {_until(mark)}: {WRITING}")
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"{name}, line {line}: the character {chr(int(error.character))!a} is not allowed in YAML"
        raise Failure(what, fix="remove it, or save the file as UTF-8 text", code=ExitCode.USAGE) from error
    reader = Reader()
    return Document(value=None if root is None else reader.value(root, ()), lines=reader.lines)


class Reader:
    """Turns composed nodes into values; aliases are followed, and count each time."""

    def __init__(self) -> None:
        self.lines: dict[Keys, int] = {}
        self.nodes = 0

    def value(self, node: yaml.Node, path: Keys) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH:
            too_much(node.start_mark)
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return scalar(node)
        check_tag(node, "map" if isinstance(node, yaml.MappingNode) else "seq")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        return [self.value(child, (*path, str(index))) for index, child in enumerate(node.value)]

    def mapping(self, node: yaml.MappingNode, path: Keys) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else self.value(key_node, path)
            if not isinstance(key, str):
                refuse("a key must be text", key_node.start_mark, fix="write the key in quotes")
            here = (*path, key)
            if key in values:
                what = f"{'.'.join(here)} is written twice, first on line {self.lines[here]}"
                refuse(what, key_node.start_mark, fix="remove one of the two")
            self.lines[here] = key_node.start_mark.line + 1
            values[key] = self.value(value_node, here)
        return values


def scalar(node: yaml.ScalarNode) -> Any:
    """A scalar's value. A written tag may only say what the text would be anyway, or `!!str`."""
    kind = node.tag.removeprefix(TAG)
    if kind not in SCALARS or not re.fullmatch(SCALARS[kind][0], node.value):
        check_tag(node, "str")
        return node.value
    return SCALARS[kind][2](node.value)


def plain(text: str) -> Any:
    """What `text` would be without quotes."""
    return next((convert(text) for pattern, _, convert in SCALARS.values() if re.fullmatch(pattern, text)), text)


def check_tag(node: yaml.Node, kind: str) -> None:
    """Refuse any written tag but the one that the node would have without it."""
    if "python" in node.tag:
        fix = "write plain values; do not use this file if you did not write it"
        mark = node.start_mark
        what = f"{place(mark)}: the tag {node.tag.replace(TAG, '!!')} would build a Python object; nothing was run"
        raise Failure(what, fix=fix, code=ExitCode.SECURITY)
    if node.tag != TAG + kind:
        refuse(f"the tag {node.tag.replace(TAG, '!!')} is not used in this file", node.start_mark, fix="remove the tag")


def too_much(mark: yaml.Mark) -> NoReturn:
    """Refuse an anchor bomb, endless nesting, or a file of another kind."""
    limits = f"at most {MAX_NODES} values, {MAX_ALIASES} aliases and {MAX_DEPTH} levels"
    refuse("more values, aliases or levels than a configuration has", mark, fix=f"keep to {limits}")


def refuse(what: str, mark: Any, fix: str | None = None) -> NoReturn:
    """Raise USAGE for what stands at `mark`."""
    fix = fix or f"mend {f'line {mark.line + 1}' if mark else 'the file'}: {WRITING}"
    raise Failure(f"{place(mark)}: {what}", fix=fix, code=ExitCode.USAGE)


def _until(mark: yaml.Mark | None) -> str:
    """Where a mistake may be that was noticed at `mark`: what is left open is noticed on a later line."""
    if mark is None:
        return "the file"
    before = ", or the one before it (a bracket, brace or quote that is not closed)" if mark.line else ""
    return f"line {mark.line + 1}{before}"


def place(mark: Any) -> str:
    """File, line and column of a mark."""
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
