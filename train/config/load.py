"""The loader reads YAML 1.2 and `section.key=value` overrides strictly into a RunConfig.

PyYAML reads YAML 1.1, where `3e-4` is text, `no` is false, `0777` is 511 and `12:30:00` is 45000;
the scalars of 1.2 replace its own. Nothing in a file is executed, repeated or expanded without
bound. An error names the key, its line, the value and the nearest right one. The small recursion
over type hints, with errors that know their path, follows dacite.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import EACCES
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml

from entrypoint import ExitCode, Failure, redact, unmounted_path_failure
from train.config import schema
from train.config.schema import RunConfig

# A configuration has about 60 values. An anchor bomb of 80 aliases would otherwise become 9**8 values.
MAX_YAML_BYTES, MAX_NODES, MAX_ALIASES, MAX_DEPTH = 256 * 1024, 10_000, 100, 20
YAML_TAG_PREFIX = "tag:yaml.org,2002:"
YAML_SYNTAX_HINT = "spaces (no tabs) indent, `key: value` with a space, text with : # @ { [ in quotes"
KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """What a text says: dict, list, str, int, float, bool or None; and for every key path its line, counted from 1."""

    value: Any
    lines: Mapping[KeyPath, int]


# Core schema of YAML 1.2 (section 10.3.2), except that a number with leading zeros stays text: readers disagree on it.
SCALAR_TYPES: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", "~nN", lambda _: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (r"[-+]?(0|[1-9][0-9]{0,17})|0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}", "-+0123456789", lambda text: int(text, 0)),
    "float": (
        r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        lambda text: float(re.sub(r"\.([iInN])", r"\1", text)),
    ),
}


class Yaml12Loader(yaml.SafeLoader):
    """PyYAML's composer with the scalars of 1.2, and with caps on nesting, nodes and aliases."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name
        self.nodes = self.aliases = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.nodes, self.depth = self.nodes + 1, self.depth + 1
        self.aliases += self.check_event(yaml.AliasEvent)
        if self.nodes > MAX_NODES or self.aliases > MAX_ALIASES or self.depth > MAX_DEPTH:
            raise_yaml_limit(self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class Yaml12Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


Yaml12Loader.yaml_implicit_resolvers = {}  # none of 1.1's; the dumper keeps those, and gets ours as well
for _name, (_pattern, _first, _) in SCALAR_TYPES.items():
    for _side in (Yaml12Loader, Yaml12Dumper):
        _side.add_implicit_resolver(YAML_TAG_PREFIX + _name, re.compile(f"^(?:{_pattern})$"), [*_first, ""])


_MISSING_CONFIG_FIX = "give the path of a YAML file, or leave --config out to train the quickstart"


def _find_other_suffix(path: Path) -> Path | None:
    """The file of this name that ends in the other of .yaml and .yml, or in one of them where this has none."""
    found = (path.with_suffix(ending) for ending in (".yaml", ".yml") if path.suffix in ("", ".yaml", ".yml"))
    return next((file for file in found if file.is_file()), None)


def read_yaml_file(path: Path) -> YamlDocument:
    """The document in a file.

    Raises:
        Failure: NO_INPUT if there is none; USAGE if it is no YAML or too big; SECURITY if it asks for Python objects.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # asked before opening, which would wait for a pipe's other end
            fix = "give a regular file: each process reads it once more, which a pipe or a folder does not allow"
            raise Failure(f"--config {path} is not a regular file", fix=fix, code=ExitCode.USAGE)
        with path.open("rb") as file:
            return parse_yaml(file.read(MAX_YAML_BYTES + 1).decode("utf-8-sig"), str(path))
    except FileNotFoundError as error:
        near = _find_other_suffix(path)
        fix = f"write --config {shlex.quote(str(near))}" if near else _MISSING_CONFIG_FIX
        missing = Failure(
            f"--config {path} does not exist", found=f"looked in {Path.cwd()}", fix=fix, code=ExitCode.NO_INPUT
        )
        raise (unmounted_path_failure("--config", path) or missing) from error
    except OSError as error:
        fix = f"make it readable for this user: chmod +r {path}" if error.errno == EACCES else "correct the path"
        raise Failure(f"--config {path} cannot be read: {error.strerror}", fix=fix, code=ExitCode.USAGE) from error
    except UnicodeDecodeError as error:
        fix = "save it as UTF-8"
        raise Failure(f"--config {path} is not UTF-8 text", fix=fix, code=ExitCode.USAGE) from error


def parse_yaml(text: str, name: str) -> YamlDocument:
    """The document in `text`; `name` says in errors where it was found."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_YAML_BYTES:
        fix = "give a configuration, not a data file"
        raise Failure(f"{name} is larger than {MAX_YAML_BYTES // 1024} KiB", fix=fix, code=ExitCode.USAGE)
    try:
        root = Yaml12Loader(text, name).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise_yaml_error(
            f"not valid YAML: {error.problem}", mark, fix=f"mend {_describe_error_lines(mark)}: {YAML_SYNTAX_HINT}"
        )
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"{name}, line {line}: the character {chr(int(error.character))!a} is not allowed in YAML"
        raise Failure(what, fix="remove it, or save the file as UTF-8 text", code=ExitCode.USAGE) from error
    reader = NodeConstructor()
    return YamlDocument(value=None if root is None else reader.value(root, ()), lines=reader.lines)


class NodeConstructor:
    """Turns composed nodes into values; aliases are followed, and count each time."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.nodes = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH:
            raise_yaml_limit(node.start_mark)
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return construct_scalar(node)
        check_tag(node, "map" if isinstance(node, yaml.MappingNode) else "seq")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        return [self.value(child, (*path, str(index))) for index, child in enumerate(node.value)]

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = construct_scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else self.value(key_node, path)
            if not isinstance(key, str):
                raise_yaml_error("a key must be text", key_node.start_mark, fix="write the key in quotes")
            here = (*path, key)
            if key in values:
                what = f"{'.'.join(here)} is written twice, first on line {self.lines[here]}"
                raise_yaml_error(what, key_node.start_mark, fix="remove one of the two")
            self.lines[here] = key_node.start_mark.line + 1
            values[key] = self.value(value_node, here)
        return values


def construct_scalar(node: yaml.ScalarNode) -> Any:
    """A scalar's value. A written tag may only say what the text would be anyway, or `!!str`."""
    kind = node.tag.removeprefix(YAML_TAG_PREFIX)
    if kind not in SCALAR_TYPES or not re.fullmatch(SCALAR_TYPES[kind][0], node.value):
        check_tag(node, "str")
        return node.value
    return SCALAR_TYPES[kind][2](node.value)


def resolve_scalar(text: str) -> Any:
    """What `text` would be without quotes."""
    return next((convert(text) for pattern, _, convert in SCALAR_TYPES.values() if re.fullmatch(pattern, text)), text)


def check_tag(node: yaml.Node, kind: str) -> None:
    """Refuse any written tag but the one that the node would have without it."""
    if "python" in node.tag:
        fix = "write plain values; do not use this file if you did not write it"
        mark = node.start_mark
        tag = node.tag.replace(YAML_TAG_PREFIX, "!!")
        what = f"{describe_mark(mark)}: the tag {tag} would build a Python object; nothing was run"
        raise Failure(what, fix=fix, code=ExitCode.SECURITY)
    if node.tag != YAML_TAG_PREFIX + kind:
        raise_yaml_error(
            f"the tag {node.tag.replace(YAML_TAG_PREFIX, '!!')} is not used in this file",
            node.start_mark,
            fix="remove the tag",
        )


def raise_yaml_limit(mark: yaml.Mark) -> NoReturn:
    """Refuse an anchor bomb, endless nesting, or a file of another kind."""
    limits = f"at most {MAX_NODES} values, {MAX_ALIASES} aliases and {MAX_DEPTH} levels"
    raise_yaml_error("more values, aliases or levels than a configuration has", mark, fix=f"keep to {limits}")


def raise_yaml_error(what: str, mark: Any, fix: str | None = None) -> NoReturn:
    """Raise USAGE for what stands at `mark`."""
    fix = fix or f"mend {f'line {mark.line + 1}' if mark else 'the file'}: {YAML_SYNTAX_HINT}"
    raise Failure(f"{describe_mark(mark)}: {what}", fix=fix, code=ExitCode.USAGE)


def _describe_error_lines(mark: yaml.Mark | None) -> str:
    """Where a mistake may be that was noticed at `mark`: what is left open is noticed on a later line."""
    if mark is None:
        return "the file"
    before = ", or the one before it (a bracket, brace or quote that is not closed)" if mark.line else ""
    return f"line {mark.line + 1}{before}"


def describe_mark(mark: Any) -> str:
    """File, line and column of a mark."""
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One override: its key path, its value as YAML reads it, and the argument as it was given."""

    keys: KeyPath
    value: Any
    text: str

    @property
    def plain(self) -> Any:
        """The value for a key that holds text: as it stands, unless it is in quotes."""
        raw = self.text.partition("=")[2].strip()
        return self.value if raw[:1] in ("'", '"') else raw


def parse_override(text: str) -> Override:
    """Read one argument.

    Raises:
        Failure: USAGE, naming the argument.
    """
    left, equals, right = text.partition("=")
    keys = tuple(left.split("."))
    if not equals or not all(keys):
        fix = suggest_config_option(text) or "write e.g. optim.lr=0.1"
        raise Failure(f"`{text}` is not section.key=value", fix=fix, code=ExitCode.USAGE)
    return Override(keys=keys, value=parse_yaml(right, f"`{text}`").value, text=text)


def parse_overrides(texts: Sequence[str]) -> list[Override]:
    """Read all arguments. One key twice is refused, as in a file.

    Raises:
        Failure: USAGE, naming the argument, or both.
    """
    parsed: dict[KeyPath, Override] = {}
    for override in map(parse_override, texts):
        if before := parsed.get(override.keys):
            raise Failure(
                f"{'.'.join(override.keys)} is written twice on the command line",
                found=f"`{before.text}` and `{override.text}`",
                fix=f"remove `{before.text}` or `{override.text}`",
                code=ExitCode.USAGE,
            )
        parsed[override.keys] = override
    return list(parsed.values())


def keep_last_overrides(texts: Iterable[str]) -> list[str]:
    """Of the arguments for one key the last alone: for a program that adds its own to those of its user."""
    found: dict[str, str] = {}
    for text in texts:
        key = text.partition("=")[0]
        found.pop(key, None)
        found[key] = text
    return list(found.values())


def suggest_config_option(text: str) -> str | None:
    """What to write instead of a bare argument that is a file, or is called like one; None where it is neither."""
    if text.endswith((".yaml", ".yml")) or os.path.isfile(text):
        return f"write --config {shlex.quote(text)}"
    return None


def overridden_keys(words: Iterable[str], keys: Iterable[str]) -> set[str]:
    """Those of `keys` whose value is the command line's: set there, or with the whole section."""
    given = [parse_override(word).keys for word in words]
    return {key for key in keys if any(tuple(key.split("."))[: len(one)] == one for one in given)}


def apply_overrides(value: Any, overrides: Sequence[Override]) -> Any:
    """`value` with the overrides put in, the last one winning; `value` itself is left as it is."""
    for override in overrides:
        value = _set_nested(value, override.keys, override)
    return value


def _set_nested(value: Any, keys: KeyPath, override: Override) -> Any:
    if not keys:
        return override.value
    if value is not None and not isinstance(value, dict):
        above = ".".join(override.keys[: len(override.keys) - len(keys)]) or "the file"
        what = f"`{override.text}` sets a key inside {above}, which is not a mapping"
        found = f"{above}: {redact(repr(value)):.80}"
        raise Failure(what, found=found, fix="remove one of the two", code=ExitCode.USAGE)
    inside = value or {}
    return inside | {keys[0]: _set_nested(inside.get(keys[0]), keys[1:], override)}


TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Any: "any value",
}
# What YAML 1.1 and old habits write for a bool.
YAML_1_1_BOOLS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}

# What other tools call our keys, where no likeness leads to them, or to one that means something else.
KEYS_OF_OTHER_TOOLS = {
    "learning_rate": "optim.lr",
    "batch_size": "train.global_batch_size",
    "per_device_train_batch_size": "train.micro_batch_size",
    "num_workers": "data.workers",
    "num_epochs": "train.epochs",
    "max_epochs": "train.epochs",
    "mixed_precision": "train.precision",
    "max_grad_norm": "train.clip_grad_norm",
    "lr_scheduler": "optim.schedule",
    "optimizer": "optim.name",
    "num_classes": "data.classes",
}


def describe_type(kind: Any) -> str:
    """A type in words: `int | Literal["auto"]` is "a whole number or auto"."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return arguments[0] if len(arguments) == 1 else f"one of {', '.join(arguments)}"
    if get_origin(kind) is list and get_origin(arguments[0]) is Literal:
        return f"a list of {', '.join(get_args(arguments[0]))}"
    if get_origin(kind) is list:
        return f"a list of {describe_type(arguments[0]).removeprefix('a ')}s"
    if get_origin(kind) is dict:
        return "a mapping"
    return TYPE_NAMES[kind] if kind in TYPE_NAMES else " or ".join(describe_type(one) for one in arguments)


def suggest_fix(kind: Any, value: Any, default: Any) -> str:
    """What to write instead of `value`."""
    members = {kind} if get_origin(kind) in (dict, list) else {kind, *get_args(kind)}
    if isinstance(value, str):
        if bool in members and value.lower() in YAML_1_1_BOOLS:
            return f"write {YAML_1_1_BOOLS[value.lower()]}: YAML 1.2 reads {value} as text"
        if members & {int, float}:
            return _suggest_number(value, default)
        if close := nearest_name(value, [one for one in members if isinstance(one, str)]):
            return f"write {close}"
    if str in members and isinstance(value, (bool, int, float)):
        return f"put it in quotes to make it text: '{format_value(value)}'"
    if isinstance(value, float) and int in members and value.is_integer():
        return f"write {int(value)}, a whole number without point or exponent"
    return f"correct it, or leave it out: the default is {format_value(default)}"


def _suggest_number(text: str, default: Any) -> str:
    value = resolve_scalar(text)
    if isinstance(value, (int, float)):
        return f"write it without quotes: {text}"
    return f"write a plain number, such as {format_value(default)}; in YAML 1.2, 0777, 1_000 and 12:30:00 are text"


def nearest_name(name: str, names: Iterable[str], likeness: float = 0.6) -> str | None:
    """The most similar of `names`, if any is as similar as that."""
    lowered = {known.lower(): known for known in names}
    return next((lowered[close] for close in difflib.get_close_matches(name.lower(), lowered, 1, likeness)), None)


def nearest_key(key: str, section: str, siblings: Iterable[str]) -> str | None:
    """The known `section.key` that an unknown key most likely means: by another tool's name, here, or elsewhere."""
    if key in KEYS_OF_OTHER_TOOLS:
        return KEYS_OF_OTHER_TOOLS[key]
    elsewhere = {path.rpartition(".")[2]: path for path in reversed(key_paths(RunConfig))}
    if key in elsewhere:
        return elsewhere[key]
    if close := nearest_name(key, siblings):
        return f"{section}.{close}".removeprefix(".")
    close = nearest_name(key, elsewhere, 0.75)
    return elsewhere[close] if close else None


def key_paths(kind: Any, above: str = "") -> list[str]:
    """Every `section.key` below a dataclass."""
    paths = []
    for name, hint in get_type_hints(kind).items():
        paths += key_paths(hint, f"{above}{name}.") if dataclasses.is_dataclass(hint) else [above + name]
    return paths


def format_value(value: Any) -> str:
    """A value as one short line of YAML, whole addresses redacted before it is cut."""
    text = yaml.dump(value, Dumper=Yaml12Dumper, default_flow_style=True, width=10_000, allow_unicode=True)
    line = text.removesuffix("\n").removesuffix("\n...")
    line = redact(line if line.isprintable() else repr(value))  # YAML writes line breaks as they are
    return line if len(line) <= 80 else f"{line[:77]}..."


NAME_KEY: Final = "name"


def infer_name_from_section(section: str, value: Any) -> str | None:
    """The `section.name` that somebody meant who wrote `value` instead of the whole section; None where it is none."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    key = f"{section}.{NAME_KEY}"
    if not isinstance(value, str) or key not in schema.RULES:
        return None
    if schema.rule_violation(key, value) is None:
        return value
    return nearest_name(value, schema.KNOWN_NAMES.get(key, ()))


def infer_name_from_key(section: str, key: str, value: Any) -> str | None:
    """The same of an unknown key: `resnet18:` alone, or `arch: resnet18`. The name is a known one."""
    known = schema.KNOWN_NAMES.get(f"{section}.{NAME_KEY}", ())
    wanted = key if value is None or value == {} else value
    right = isinstance(wanted, str) and (
        wanted in known or (f"{section}.{NAME_KEY}" in schema.FACTORY_KEYS and schema.is_factory(wanted))
    )
    return wanted if right else None


def unwrap_value(value: Any, fits: Callable[[Any], bool]) -> Any:
    """The one plain value in a mapping or a list that stands in its place; None where there is none."""
    return next((one for one in _unwrap_candidates(value) if fits(one)), None)


def _unwrap_candidates(value: Any) -> Iterator[Any]:
    """`{name: x}` and `{x: }`, `{any: x}` and `[x]`. What was written beside it would be lost: then there is none."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((key, only),) = value.items()
        yield key if only in (None, {}) else only
    if isinstance(value, list) and len(value) == 1:
        yield value[0]


TYPE_MISMATCH = object()
MAX_REPORTED_KEYS: Final = (
    10  # wrong keys of a section that are looked for: a file for another program may have thousands
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLocation:
    """Where a value belongs (`keys`), and what is known about where each key was written."""

    keys: KeyPath
    name: str
    lines: Mapping[KeyPath, int]
    overrides: Mapping[KeyPath, Override]

    def __str__(self) -> str:
        return ".".join(self.keys) or "the configuration"

    def below(self, key: str) -> KeyLocation:
        return dataclasses.replace(self, keys=(*self.keys, key))

    def wants(self, value: Any) -> str:
        """How `value` is written here: in the file, or on the command line."""
        return (
            f"write {self}={format_value(value)}"
            if self.place.startswith("`")
            else f"write {self}: {format_value(value)}"
        )

    @property
    def place(self) -> str:
        """The override that wrote this key, what is around it or inside it; else its line in the file."""
        upwards = [self.keys[:length] for length in range(len(self.keys), -1, -1)]
        inside = [
            keys for keys in self.overrides if keys[: len(self.keys)] == self.keys and self.keys not in self.lines
        ]
        if over := next((self.overrides[keys] for keys in [*upwards, *inside] if keys in self.overrides), None):
            return f"`{over.text}` on the command line"
        line = next((self.lines[keys] for keys in upwards if keys in self.lines), 1)
        return f"{self.name}, line {line}"


def load_config(path: str | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a file (None: the quickstart) with overrides on top.

    Raises:
        Failure: USAGE, NO_INPUT or SECURITY, naming key, place, value and the nearest known name.
    """
    document = read_yaml_file(Path(path)) if path is not None else YamlDocument(value=None, lines={})
    return build_config(document, path or "the quickstart", overrides)


def build_config(document: YamlDocument, name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The same from a mapping that was read already; `name` says in errors where it comes from."""
    parsed = parse_overrides(overrides)
    at = KeyLocation(
        keys=(), name=name, lines=document.lines, overrides={override.keys: override for override in parsed}
    )
    config: RunConfig = parse_section(RunConfig, apply_overrides(document.value, parsed), at)
    return config


def dump_config(config: RunConfig) -> str:
    """YAML that loads back to the same configuration."""
    return yaml.dump(as_mapping(config), Dumper=Yaml12Dumper, sort_keys=False, allow_unicode=True, width=120)


def as_mapping(config: RunConfig) -> dict[str, Any]:
    """Plain dicts of all keys."""
    return dataclasses.asdict(config)


def parse_section(kind: Any, value: Any, at: KeyLocation) -> Any:
    """A dataclass from a mapping; a section without keys is its defaults."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise_invalid_value(at, value, "a mapping of keys to values", _section_fix(value, at))
    hints, default = get_type_hints(kind), kind()
    taken, refused = {}, []
    for key in value:
        try:
            if key not in hints:
                raise_unknown_key(key, value[key], hints, at)
            taken[key] = parse_value(hints[key], value[key], getattr(default, key), at.below(key))
        except Failure as failure:
            refused.append(failure)
            if len(refused) == MAX_REPORTED_KEYS:
                break
    if refused:  # three typos are not three attempts: the first tells of the others
        first, *others = refused
        first.also = (*first.also, *(line for one in others for line in summarize_failure(one)))
        raise first
    return kind(**taken)


def summarize_failure(failure: Failure) -> Sequence[str]:
    """It in a line, and what it tells of others."""
    return f"{failure.found or failure.what}, fix: {failure.fix}", *failure.also


def _section_fix(value: Any, at: KeyLocation) -> str:
    """What to write instead of a plain value: the name that it is, or lines."""
    typed = at.place.startswith("`")
    if name := infer_name_from_section(str(at), value):
        return at.below(NAME_KEY).wants(name) if typed else at.wants({NAME_KEY: name})
    if typed:
        return f"write {at}.KEY=VALUE"
    return f"write `key: value` lines{f' below `{at}:`' if at.keys else ''}"


def parse_value(kind: Any, value: Any, default: Any, at: KeyLocation) -> Any:
    """One key's value: a section, or a leaf of the right type and range whose feature exists."""
    if dataclasses.is_dataclass(kind):
        return parse_section(kind, value, at)
    if str(at) in schema.UNAVAILABLE_KEYS and value != default:
        fix = f"leave {at} out, or set it to {format_value(default)}"
        what = f"{at} is not available in this version"
        raise Failure(
            what, found=describe_entry(at, value), expected=format_value(default), fix=fix, code=ExitCode.USAGE
        )
    fitted = match_type(kind, as_text_if_expected(kind, value, at))
    if fitted is TYPE_MISMATCH:
        plain = unwrap_value(
            value, lambda one: match_type(kind, one) is not TYPE_MISMATCH and not schema.rule_violation(str(at), one)
        )
        raise_invalid_value(
            at, value, describe_type(kind), suggest_fix(kind, value, default) if plain is None else at.wants(plain)
        )
    if expected := schema.rule_violation(str(at), fitted):
        names = schema.KNOWN_NAMES.get(str(at))
        raise_invalid_value(at, value, expected, suggest_fix(Literal[names] if names else None, value, default))
    return fitted


def as_text_if_expected(kind: Any, value: Any, at: KeyLocation) -> Any:
    """On the command line `run.name=7` is text: the shell has taken the quotes that YAML would want."""
    override = at.overrides.get(at.keys)
    wants_text = str in (kind, *get_args(kind))
    return override.plain if override and wants_text and isinstance(value, (str, int, float)) else value


def match_type(kind: Any, value: Any) -> Any:
    """`value` as `kind`, or TYPE_MISMATCH. A whole number is also a float; nothing else is converted."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return next(
            (fitted for one in arguments if (fitted := match_type(one, value)) is not TYPE_MISMATCH), TYPE_MISMATCH
        )
    if origin is dict:
        return {} if value is None else value if isinstance(value, dict) else TYPE_MISMATCH
    if origin is list:
        items = [match_type(arguments[0], item) for item in value] if isinstance(value, list) else [TYPE_MISMATCH]
        return TYPE_MISMATCH if TYPE_MISMATCH in items else items
    if origin is Literal:
        return value if isinstance(value, str) and value in arguments else TYPE_MISMATCH
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else TYPE_MISMATCH


def raise_invalid_value(at: KeyLocation, value: Any, expected: str, fix: str) -> NoReturn:
    """Refuse a value of the wrong type or range."""
    what = f"{at} has a value that cannot be used"
    raise Failure(what, found=describe_entry(at, value), expected=expected, fix=fix, code=ExitCode.USAGE)


def raise_unknown_key(key: str, value: Any, known: Mapping[str, Any], at: KeyLocation) -> NoReturn:
    """Refuse a key that does not exist, naming the nearest one that does."""
    here = at.below(key if key.isprintable() else format_value(key))
    close = nearest_key(key, ".".join(at.keys), known)
    fix = f"write {close} instead of {here}" if close else f"remove {here}"
    if not close and (name := infer_name_from_key(str(at), key, value)):
        fix = at.below(NAME_KEY).wants(name)
    expected = f"one of {', '.join(known)}"
    raise Failure(
        f"unknown key {here}", found=describe_entry(here, value), expected=expected, fix=fix, code=ExitCode.USAGE
    )


def describe_entry(at: KeyLocation, value: Any) -> str:
    """Key, value and place."""
    return f"{at}: {format_value(value)} ({at.place})"
