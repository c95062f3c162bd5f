"""The command `entrypoint`: show what was detected, look for what would break, or run any command once per rank."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NoReturn

from entrypoint import Failure, Plan, add_launch_arguments, make_plan, met, options_from, say, say_help, shield
from entrypoint.errors import ExitCode
from entrypoint.folding import columns_of

NARROW: Final = 80  # columns, of a terminal that does not say
_EXAMPLES = """examples:
  entrypoint show                        what would be started here, and why
  entrypoint doctor                      what would break a training here, and how to mend it
  entrypoint run -- python script.py     your own script, once per GPU
"""

SHOW = """A line for each value: its name, the value, and where that came from. There a name in capitals is a variable
that was read; `given` is an option or a variable of yours; `launch key` is made from job, step and start; `this
process`, `no launcher found` and `one node: loopback` say that nothing had to be read. Nothing there: counted here, or
follows from the others. `spawn` is how many ranks this task starts.
""".replace("\n", " ")


class Parser(argparse.ArgumentParser):
    """argparse with our exit code and our two halves."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving with 2."""
        raise Failure(message, fix=f"see `{self.prog} --help`", code=ExitCode.USAGE)

    def print_help(self, file: Any = None) -> None:
        """With examples and descriptions as wide as the terminal."""
        say_help(self.format_help(), file)


class Help(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal. To find that out, argparse would load shutil and three kinds of compression."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=(columns_of(1) or NARROW) - 2)


def build_parser() -> Parser:
    """The command line."""
    parser = Parser(prog="entrypoint", description=__doc__, epilog=_EXAMPLES, formatter_class=Help)
    commands = parser.add_subparsers(dest="command", required=True, metavar="show|doctor|run")
    show = commands.add_parser(
        "show",
        help="what was detected, the plan, and where each value came from",
        description=SHOW,
        formatter_class=Help,
    )
    show.add_argument("--json", action="store_true", help="one JSON object")
    doctor = commands.add_parser(
        "doctor", help="what would break a training here, with a fix for each", formatter_class=Help
    )
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.add_argument("--full", action="store_true", help="start all ranks once, to see them exchange numbers")
    doctor.add_argument("--output", metavar="DIR", default="runs", help="folder that runs are kept in (default: runs)")
    doctor.add_argument("--workers", metavar="N", type=int, help="data.workers of your config, where it is a number")
    run = commands.add_parser(
        "run", help="run a command once per rank with torchrun's contract set", formatter_class=Help
    )
    run.add_argument("--logs", metavar="DIR", default="logs", help="folder for rank-NNNN.log (default: logs)")
    for each in (show, doctor, run):
        add_launch_arguments(each)
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="[--] CMD ...", help="the command")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments: argparse.Namespace | None = None
    shield()
    try:
        arguments = build_parser().parse_args(argv)
        return _COMMANDS[arguments.command](arguments, os.environ)
    except Failure as failure:
        if arguments is not None and getattr(arguments, "json", False):
            import json

            print(json.dumps({"error": failure.as_json()}))
        else:
            say(str(failure), sys.stderr)
        return int(failure.code)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if limited := met(error):
            say(str(limited), sys.stderr)
            return int(limited.code)
        import traceback

        traceback.print_exc()
        return int(ExitCode.BUG)


def _show(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    planned = make_plan(environ, options_from(arguments, environ))
    if arguments.json:
        import json  # this, too, only those wait for who ask for it

    say(json.dumps(as_json(planned)) if arguments.json else as_table(planned), sys.stdout)
    return 0


def _doctor(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from pathlib import Path

    from entrypoint.doctor import examine, findings, report, scene  # nor for what looks around

    asked = options_from(arguments, environ)
    place = scene.Scene(environ=environ, options=asked, output=Path(arguments.output), workers=arguments.workers)
    found = examine.examine(place, words_of(arguments) if arguments.full else None)
    if arguments.json:
        import json
    terminal = sys.stdout.isatty()
    colour = report.coloured(terminal, environ)
    text = report.as_text(found, colour=colour, columns=(columns_of(1) or NARROW) if terminal else None)
    print(json.dumps(report.as_json(found)) if arguments.json else text)
    return int(ExitCode.NODE if findings.failed(found) else ExitCode.OK)


def words_of(arguments: argparse.Namespace) -> list[str]:
    """The launch arguments once more, as words."""
    names = ("device", "procs_per_node", "nodes", "node_rank", "master_addr", "master_port")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        raise Failure("no command to run", fix="entrypoint run -- python script.py", code=ExitCode.USAGE)
    from pathlib import Path

    from entrypoint import run_plan  # `show` does not wait for what starts processes

    planned = make_plan(environ, options_from(arguments, environ))
    return run_plan(planned, program, environ, log_dir=Path(arguments.logs), foreign=True)


_COMMANDS: dict[str, Callable[[argparse.Namespace, Mapping[str, str]], int]] = {
    "show": _show,
    "doctor": _doctor,
    "run": _run,
}


def as_json(planned: Plan) -> dict[str, Any]:
    """The object that `show --json` promises."""
    return {
        "launcher": planned.launcher,
        "world": asdict(planned.world),
        "hosts": list(planned.hosts),
        "spawn": planned.spawn,
        "device": planned.device,
        "sources": dict(planned.sources),
        "warnings": list(planned.warnings),
    }


def as_table(planned: Plan) -> str:
    """The same for a person."""
    world = asdict(planned.world)
    rows: list[tuple[str, str, str]] = [("launcher", planned.launcher, ""), ("device", planned.device, "")]
    rows += [(name, str(value), planned.sources.get(name, "")) for name, value in world.items()]
    rows += [("hosts", ",".join(planned.hosts) or "not known", planned.sources.get("hosts", ""))]
    rows += [("spawn", str(planned.spawn), "ranks that this task starts")]
    width = max(len(value) for _, value, _ in rows)
    lines = [f"{name:<17} {value:<{width}}  {source}".rstrip() for name, value, source in rows]
    return "\n".join([*lines, *(f"WARNING: {warning}" for warning in planned.warnings)])


if __name__ == "__main__":
    sys.exit(main())
