"""The console functions escape names in messages, fold them to the terminal's width, and survive a closed console.

A message is folded at spaces and indented; without a terminal it stays on one line, so that grep
finds it. A failed write is dropped: a closed console or a full disk never stops a training.

A file's name, a class or a variable may hold a terminal's commands or line breaks, which would hide lines or forge
them. They are escaped here, where text is written. Line breaks of ours are told from those of names by their type,
`PrintableText`, as jinja2's Markup tells our tags.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TextIO

MIN_FOLD_COLUMNS: Final = 40  # on a narrower terminal nothing is folded
# A label and the gap before its value: `output         runs/small`.
NAMED_VALUE_PATTERN: Final = re.compile(r" {0,2}\S(?:.{0,15}\S)? {2,}(?=\S)")
# A command to copy: the terminal wraps it, and a line break of ours would be pasted with it.
COMMAND_PATTERN: Final = re.compile(r"(?:(?:report|predict|evaluate|continue|train on them|next): |use {5}\S)")
# An option of a help text and the gap before its explanation: `  --config FILE   a YAML file`.
HELP_ENTRY_PATTERN: Final = re.compile(r" *\S(?:.*?\S)? {2,}(?=\S)")
MIN_EXPLANATION_COLUMNS: Final = 24  # with less room, an explanation goes below its option
# A help text is folded without a terminal too, since nobody greps for a whole paragraph.
HELP_COLUMNS_WITHOUT_TERMINAL: Final = 120
# JSON, Markdown tables and repeated output of other programs keep their layout.
PREFORMATTED_PREFIXES: Final = ("{", "[", "|")


# A label at the start of a line, and its colour: red for errors, yellow for warnings.
LABEL_PATTERN: Final = re.compile(r"^(?:(ERROR(?:\[\d+\])?)|((?i:warning)))(?=[: ])", re.MULTILINE)
RED, YELLOW, PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"


# What controls a terminal, ends a line, or changes the direction of text: control characters but tab and newline, the
# separators of lines and paragraphs, the marks of direction, and bytes that are no text. The carriage return is apart.
_CONTROLS: Final = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_NAME_PATTERN: Final = re.compile(f"[\r\n{_CONTROLS}]")
_OUTPUT_PATTERN: Final = re.compile(f"[{_CONTROLS}]")
# A progress bar writes a carriage return first or last; in between it would hide what is before it.
_WRITE_PATTERN: Final = re.compile(f"[{_CONTROLS}]|(?<!\\A)\r(?!\n|\\Z)")


class PrintableText(str):
    """Text without control characters, whose line breaks are ours. In any other string they belong to a name."""


def to_printable(text: object) -> PrintableText:
    """One line: what controls a terminal is escaped as `\\n`, `\\x1b` or `\\u202e`. PrintableText stays as it is."""
    return text if isinstance(text, PrintableText) else PrintableText(_NAME_PATTERN.sub(_escape, str(text)))


def join_lines(lines: Iterable[object]) -> PrintableText:
    """The lines, or texts of several lines if they are PrintableText."""
    return PrintableText("\n".join(map(to_printable, lines)))


def list_some(items: Sequence[Any], most: int = 5, describe: Callable[[Any], str] = str, separator: str = ", ") -> str:
    """The first `most` items, and how many more there are."""
    more = f"{separator.removeprefix(',')}and {len(items) - most:,} more" if len(items) > most else ""
    return separator.join(map(describe, items[:most])) + more


def pluralize(number: int, noun: str) -> str:
    """1 rank, 2,000 ranks, 3 classes."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def dump_json(value: object, **options: Any) -> PrintableText:
    """JSON, whose strings have no character that controls a terminal. options: of json.dumps.

    Bytes of a path that are no text become escapes such as `\\udce9`: os.fsencode restores them from what is read.
    """
    text = json.dumps(value, **({"ensure_ascii": False} | options))
    return PrintableText(_OUTPUT_PATTERN.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def escape_output(text: str) -> str:
    """Escape what controls a terminal in the output of a program: only ends of lines and progress bars stay."""
    return _OUTPUT_PATTERN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "\\n" if code == 10 else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


_typed_words: list[str] = []  # the command line of the user, which `remember_typed_words` keeps


def typed_program(program: str, python: str, path: str, *, isolated: bool) -> list[str]:
    """The words by which a user started this program; one that is found on `path` (PATH) goes by its name.

    program: sys.argv[0]. python: sys.orig_argv[0]. isolated: Python was started with -I, as the image's commands and
    entrypoint.isolated do, and no user does.
    """
    folder, name = os.path.split(program)
    folders = path.split(os.pathsep)
    if name == "__main__.py":
        name = os.path.basename(folder)
        candidates = [*(os.path.join(entry, name) for entry in folders), os.path.join(os.path.dirname(python), name)]
        command = next((each for each in candidates if isolated and os.access(each, os.X_OK)), None)
        if command is None:
            return [python, "-m", name]
        folder, program = os.path.split(command)[0], command
    return [name if os.path.isabs(program) and folder in folders else program]


def remember_typed_words(words: Iterable[str]) -> None:
    """Keep the command line that the user typed, for `shell_command`."""
    _typed_words[:] = words


def shell_command(command: str, *words: object, same_config: bool = False) -> str:
    """A command of ours such as `train data index`, and further words, as the user's shell takes them.

    Who has typed .venv/bin/train or python -m train gets commands that begin so. same_config: add the --config and the
    settings that were typed.
    """
    program, *others = command.split(" ")
    if _typed_words[1:2] == ["-m"]:
        start = [*_typed_words[:2], program]
    else:
        start = [os.path.join(*(os.path.dirname(word) for word in _typed_words[:1]), program)]
    return shlex.join([*start, *others, *map(str, words), *(config_words(_typed_words) if same_config else ())])


def pip_command(*packages: str) -> str:
    """The command that installs packages where this program finds them, for the end of a sentence."""
    if os.path.exists("/opt/image.json"):  # only our image has it
        return f"pip install {' '.join(packages)} with a folder bound to /opt/extra (docs/image.md, One more package)"
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])


def config_words(words: Sequence[str]) -> list[str]:
    """The words of a command line that make the configuration: --config FILE, and section.key=value."""
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if before == "--config" or word.startswith("--config") or ("=" in word and word[0] != "-")
    ]


def use_color(terminal: bool, environ: Mapping[str, str]) -> bool:
    """Whether to use colours. terminal: the output goes to a terminal. Source: no-color.org."""
    return terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def color_labels(text: str) -> str:
    """Show ERROR in red and WARNING in yellow at the start of each line."""
    return LABEL_PATTERN.sub(lambda match: (RED if match[1] else YELLOW) + match[0] + PLAIN, text)


def terminal_columns(descriptor: int) -> int | None:
    """The width of the terminal behind a file descriptor; None if it is no terminal."""
    try:
        return os.get_terminal_size(descriptor).columns or None
    except OSError:
        return None


def _stream_columns(stream: TextIO) -> int | None:
    try:
        return terminal_columns(stream.fileno())
    except (OSError, ValueError, AttributeError):  # a test's stream, or a closed one
        return None


def fold_text(text: str, columns: int | None) -> str:
    """Fold each line that is longer than `columns`.

    None leaves the text as it is, one line per fact.
    """
    if columns is None or columns < MIN_FOLD_COLUMNS:
        return text
    return "\n".join(part for line in text.split("\n") for part in _fold_line(line, columns))


def print_message(text: str, stream: TextIO) -> None:
    """Write a message and a newline, escaped as by `to_printable`, folded and coloured for a terminal."""
    folded = fold_text(to_printable(text), _stream_columns(stream))
    write_styled((color_labels(folded) if getattr(stream, "uses_color", False) else folded) + "\n", stream)


def write_styled(text: str, stream: TextIO) -> None:
    """Write text with colours or movements of the cursor that are ours: the names in it are escaped already."""
    getattr(stream, "write_styled", stream.write)(text)
    stream.flush()


def print_help_text(text: str, stream: TextIO | None) -> None:
    """Write argparse's help text with usage, examples and paragraphs folded too.

    stream: None means sys.stdout.
    """
    stream = stream or sys.stdout
    stream.write(fold_help(text, _stream_columns(stream) or HELP_COLUMNS_WITHOUT_TERMINAL))


def fold_help(text: str, columns: int) -> str:
    """Fold each line of a help text that is longer than `columns`.

    Explanations stay in their column.
    """
    columns = max(columns, MIN_FOLD_COLUMNS)
    return "\n".join(part for line in text.split("\n") for part in _fold_help_line(line, columns))


def fold_complete_lines(data: bytes, columns: int | None, *, begun: bool, color: bool = False) -> bytes:
    """Fold the complete lines among a program's bytes. color: colour their labels, too.

    begun: the first line continues one that is shown already, so it is not folded. Text before a
    carriage return belongs to a progress bar and stays as it is.
    """
    *lines, unfinished = data.split(b"\n")
    folded_lines = []
    for number, line in enumerate(lines):
        bar, drawn, message = line.rpartition(b"\r")
        starts_at_margin = drawn or not (begun and number == 0)
        text = fold_text(message.decode(errors="surrogateescape"), columns)
        encoded = (color_labels(text) if color else text).encode(errors="surrogateescape")
        folded_lines.append(bar + drawn + encoded if starts_at_margin else line)
    return b"\n".join([*folded_lines, unfinished])


def _fold_line(line: str, columns: int) -> list[str]:
    """Fold one line at spaces only, so that a path can be copied."""
    body, is_command = line.lstrip(" "), COMMAND_PATTERN.match(line)
    is_preformatted = is_command or body.startswith(PREFORMATTED_PREFIXES) or "\x1b" in line or "\t" in line
    if len(line) <= columns or is_preformatted:
        return [line]
    label = NAMED_VALUE_PATTERN.match(line)
    start = label.end() if label else len(line) - len(body)
    if body.startswith("fix: ") and "; or " in line:  # each way on lines of its own
        first, *others = line.split("; or ")
        ways = [first, *(f"{' ' * (start + len('fix: '))}or {way}" for way in others)]
        return [part for way in ways for part in _fold_line(way, columns)]
    if "  " in line[start:]:  # a table
        return [line]
    return wrap_text(line[start:], columns, line[:start], " " * (start if label else start + 2))


def _fold_help_line(line: str, columns: int) -> list[str]:
    if len(line) <= columns:
        return [line]
    left = len(line) - len(line.lstrip(" "))
    cell = HELP_ENTRY_PATTERN.match(line)
    if cell is None:
        return wrap_text(
            line[left:], columns, line[:left], " " * (left if left > MIN_EXPLANATION_COLUMNS else left + 2)
        )
    start = cell.end()
    if columns - start >= MIN_EXPLANATION_COLUMNS:
        return wrap_text(line[start:], columns, line[:start], " " * start)
    below = " " * (left + 4)
    return [line[:start].rstrip(), *wrap_text(line[start:], columns, below, below)]


def wrap_text(text: str, columns: int, begin: str = "", indent: str = "") -> list[str]:
    """Lines of this width, folded at spaces only, so that commands and paths can be copied.

    begin: before the first line. indent: before the others.
    """
    return textwrap.wrap(
        text, columns, initial_indent=begin, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [begin]


class NonFailingStream:
    """A wrapper of `stream` that escapes what controls a terminal, and drops failed writes.

    A closed console or a full disk never stops training.

    Everything else (isatty, fileno, encoding, ...) is passed through, so that progress bars work.
    """

    def __init__(self, stream: TextIO, *, uses_color: bool = False) -> None:
        self._stream = stream
        self.uses_color = uses_color
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text`, whose line breaks stay, or drop it if the stream fails."""
        return self.write_styled(_WRITE_PATTERN.sub(_escape, text))

    def write_styled(self, text: str) -> int:
        """Write `text` as it is, or drop it if the stream fails."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError) as error:  # ValueError: the stream was closed in this process
            self._drop_write(error)
            return len(text)

    def flush(self) -> None:
        """Flush, or do nothing if the stream fails."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._drop_write(error)

    def _drop_write(self, error: Exception) -> None:
        """Count the lost write.

        A broken pipe is pointed at /dev/null, or Python's last flush would exit with 120.
        """
        self.lost += 1
        if isinstance(error, BrokenPipeError):
            with suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())


def count_lost_output() -> None:
    """Count text for stdout that was lost on another way than through sys.stdout."""
    if isinstance(sys.stdout, NonFailingStream):
        sys.stdout.lost += 1


def protect_output_streams(environ: Mapping[str, str]) -> None:
    """Wrap sys.stdout and sys.stderr in NonFailingStream.

    `main` calls this once, before it opens any file.
    """
    _reopen_closed_descriptors()
    sys.stdout = _protect_stream(sys.stdout or os.fdopen(1, "w", closefd=False), environ)
    sys.stderr = _protect_stream(sys.stderr or os.fdopen(2, "w", closefd=False), environ)


def _reopen_closed_descriptors() -> None:
    """Open closed descriptors (`2>&-`) on /dev/null, or the next file would get their number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one


def _protect_stream(stream: TextIO, environ: Mapping[str, str]) -> TextIO:
    if (
        isinstance(stream, io.TextIOWrapper) and stream.errors == "strict"
    ):  # an unprintable character in a path must not lose the line
        stream.reconfigure(errors="backslashreplace")
    if isinstance(stream, NonFailingStream):
        return stream
    return NonFailingStream(stream, uses_color=use_color(stream.isatty(), environ))  # type: ignore[return-value]
