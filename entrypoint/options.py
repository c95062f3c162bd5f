"""Launch options come from the command line, ENTRYPOINT_* variables and the config file.

The command line wins over the variables, and those win over the file.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, get_args

from entrypoint.console import print_help_text, shell_command
from entrypoint.errors import ExitCode, Failure, refuse_lost_output

DeviceChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The launch options that the user gave. None means: not given, to be detected."""

    device: DeviceChoice = "auto"
    procs_per_node: int | None = None
    nodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    port_range: tuple[int, int] | None = None


PATH_METAVARS: Final = ("FILE", "FILE.csv", "DIR", "FOLDER", "RUN")


def has_variable(path: str) -> bool:
    """Whether a path has what only a shell replaces: a variable, or ~ for the home folder."""
    return "$" in path or path.startswith("~")


def expand_path(path: str) -> tuple[str, list[str]]:
    """(the path as a shell would write it, the variables in it that are not set or empty)."""
    names = re.findall(r"\$\{?([A-Za-z_]\w*)", path, re.ASCII)
    unset = [name for name in names if os.path.expandvars(f"${name}") in ("", f"${name}")]
    return os.path.expanduser(os.path.expandvars(path)), unset


def refuse_variables(word: str, path: str) -> None:
    """Refuse an option's path that no shell has expanded: it would be a folder called $SCRATCH or ~.

    Raises:
        Failure: USAGE, with the path to write.
    """
    expanded, unset = expand_path(path)
    if has_variable(path):
        fix = f"write {expanded}, or leave out the quotes" if expanded != path else "write the path itself"
        fix = f"write the path itself: {', '.join(unset)} is not set here" if unset else fix
        what = "only a shell replaces ~ and $ in a path, and none did"
        raise Failure(what, found=word, fix=fix, code=ExitCode.USAGE)


class StoreOnce(argparse.Action):
    """Stores the value of an option, and refuses the option if it is given twice: argparse would take the last one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the value. Raises Failure (USAGE), naming both."""
        words = vars(namespace).setdefault("option_words", {})
        word = f"{option_string or self.metavar} {values}"
        if option_string is not None and self.dest in words:
            raise Failure(
                f"{option_string} is given twice",
                found=f"`{words[self.dest]}` and `{word}`",
                fix=f"remove `{words[self.dest]}` or `{word}`",
                code=ExitCode.USAGE,
            )
        words[self.dest] = word
        if isinstance(values, str) and self.metavar in PATH_METAVARS and not os.path.lexists(values):
            refuse_variables(word, values)
        setattr(namespace, self.dest, values)


class StrictArgumentParser(argparse.ArgumentParser):
    """An argument parser that refuses an option that is given twice or not written out.

    Its texts keep their lines; its help is folded to the terminal's width.
    """

    def __init__(self, **options: Any) -> None:
        usual: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(**usual | options)
        for action in (None, "store"):
            self.register("action", action, StoreOnce)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """As argparse's, after --help. Raises Failure (IO) if the help could not be written."""
        refuse_lost_output()
        super().exit(status, message)

    def choice_failure(self, message: str) -> Failure | None:
        """The failure of a command or an option's word that is none of the choices, with the near one as its fix.

        message: argparse's. None: it is about something else.
        """
        import difflib  # not above: `entrypoint.isolated` imports this module before it keeps the caller's modules out

        refused = re.search(r"argument (.+): invalid choice: '(.*)' \(choose from (.+)\)", message)
        if refused is None:
            return None
        name, word, listed = refused.groups()
        # `show|doctor` names the commands that a user types; argparse lists those of the job scripts too.
        choices = name.split("|") if "|" in name else re.findall(r"[\w-]+", listed)
        close = difflib.get_close_matches(word.lower(), choices, 1) if len(choices) > 1 else choices
        what, near = f"`{self.prog} {word}` is no command", f"`{shell_command(self.prog, *close)}`"
        if name.startswith("-"):
            what, near = f"command line: {message}", f"{name} {''.join(close)}"
        fix = f"write {near}" if close else f"use one of: {', '.join(choices)}"
        return Failure(what, fix=fix, code=ExitCode.USAGE)

    def print_help(self, file: Any = None) -> None:
        """Print the help with examples and descriptions folded to the terminal's width."""
        print_help_text(self.format_help(), file)


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `train` and `entrypoint` share."""
    group = parser.add_argument_group("processes")
    group.add_argument(
        "--device",
        metavar="auto|cpu|cuda",
        help="where to compute (default: GPUs; the CPU if there is no NVIDIA driver)",
    )
    group.add_argument("--procs-per-node", metavar="N", help="ranks on each node (default: one per visible GPU)")
    manual = parser.add_argument_group("several machines without a scheduler (give all four, on each machine)")
    manual.add_argument("--nodes", metavar="N", help="number of machines")
    manual.add_argument("--node-rank", metavar="K", help="this machine's number, from 0")
    manual.add_argument("--master-addr", metavar="HOST", help="machine number 0")
    manual.add_argument("--master-port", metavar="PORT", help="a free TCP port there")


def parse_launch_options(
    arguments: argparse.Namespace,
    environ: Mapping[str, str],
    *,
    device: str = "auto",
    procs_per_node: int | None = None,
) -> LaunchOptions:
    """Merge the three sources; `device` and `procs_per_node` are the config file's.

    Raises:
        Failure: USAGE, with the argument or variable and its value.
    """
    device_source, requested = _first_given(arguments, environ, "device", device)
    devices: dict[str, DeviceChoice] = {name: name for name in get_args(DeviceChoice)}
    if requested not in devices:
        likely = "cuda" if requested.lower().startswith(("gpu", "cuda", "nvidia")) else None
        raise _bad_value_failure(device_source, requested, "auto, cpu or cuda", likely)
    source, procs = _first_given(arguments, environ, "procs_per_node", procs_per_node)
    manual = {
        name: _parse_integer(f"--{name.replace('_', '-')}", getattr(arguments, name), limits)
        for name, limits in _MANUAL_RANGES.items()
    }
    options = LaunchOptions(
        device=devices[requested],
        procs_per_node=_parse_integer(source, None if procs == "auto" else procs, _PROCS_RANGE),
        master_addr=arguments.master_addr,
        port_range=_parse_port_range(environ.get("ENTRYPOINT_PORT_RANGE")),
        **manual,
    )
    _check_manual_options(options)
    return options


# (lowest, highest). A larger number of nodes or processes is a typing error.
_PROCS_RANGE = (1, 1024)
_MANUAL_RANGES = {"nodes": (1, 65_536), "node_rank": (0, 65_535), "master_port": (1, 65_535)}


def _first_given(
    arguments: argparse.Namespace, environ: Mapping[str, str], name: str, file_value: object
) -> tuple[str, str]:
    variable = f"ENTRYPOINT_{name.upper()}"
    if getattr(arguments, name) is not None:
        return f"--{name.replace('_', '-')}", getattr(arguments, name)
    if environ.get(variable):
        return variable, environ[variable]
    return f"launch.{name}", "auto" if file_value is None else str(file_value)


def _parse_integer(source: str, text: str | None, limits: tuple[int, int]) -> int | None:
    if text is None:
        return None
    lowest, highest = limits
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(highest)) and lowest <= int(text) <= highest):
        raise _bad_value_failure(source, text, f"a whole number from {lowest} to {highest}")
    return int(text)


def _parse_port_range(text: str | None) -> tuple[int, int] | None:
    if not text:
        return None
    match = re.fullmatch(r"(\d{4,5})-(\d{4,5})", text, re.ASCII)
    if match and 1024 <= int(match[1]) <= int(match[2]) <= 65_535:
        return int(match[1]), int(match[2])
    raise _bad_value_failure(
        "ENTRYPOINT_PORT_RANGE", text, "LOW-HIGH with 1024 <= LOW <= HIGH <= 65535, such as 20000-32767"
    )


def _check_manual_options(options: LaunchOptions) -> None:
    addr = options.master_addr or None
    required = {"--nodes": options.nodes, "--node-rank": options.node_rank, "--master-addr": addr}
    missing = [name for name, value in required.items() if value is None]
    if len(missing) == len(required) and options.master_port is None:
        return
    if missing:
        raise Failure(
            f"{', '.join(missing)} missing: several machines without a scheduler need all of them",
            fix="give --nodes N --node-rank K --master-addr HOST [--master-port PORT] on each machine",
            code=ExitCode.USAGE,
        )
    if not options.nodes or (options.node_rank or 0) >= options.nodes:
        raise _bad_value_failure("--node-rank", str(options.node_rank), f"a number below --nodes ({options.nodes})")


def _bad_value_failure(source: str, value: str, expected: str, likely: str | None = None) -> Failure:
    return Failure(
        f"{source} has a value that cannot be used",
        found=f"{source}={value[:200]}",
        expected=expected,
        fix=f"set {source} to {likely or expected}, or leave it out",
        code=ExitCode.USAGE,
    )
