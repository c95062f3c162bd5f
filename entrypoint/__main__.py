"""`entrypoint` shows the launch plan, checks this machine, or runs a command once per rank."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

from entrypoint import (
    Failure,
    Plan,
    StrictArgumentParser,
    add_launch_arguments,
    job_script,
    make_plan,
    parse_launch_options,
    print_message,
    protect_output_streams,
    resource_limit_failure,
    run_errors,
    run_plan,
)
from entrypoint.console import (
    join_lines,
    remember_typed_words,
    shell_command,
    terminal_columns,
    typed_program,
    use_color,
    write_styled,
)
from entrypoint.doctor import context, examine, report
from entrypoint.errors import ExitCode, refuse_lost_output

UNKNOWN: Final = "not known yet"  # until ranks start
COMMAND_NAMES: Final = "show|doctor|run|job-script"
DEFAULT_COLUMNS: Final = 80  # for a terminal that does not report its width
_EXAMPLES = """examples:
  entrypoint show                        what would be started here, and why
  entrypoint doctor                      what would break a training here, and how to fix it
  entrypoint run -- python script.py     your own script, once per GPU
  entrypoint job-script --nodes 4 --gpus-per-node 8 --time 8:00:00 --partition gpu > job.sh
"""

SHOW_DESCRIPTION = """One line per value: its name, the value and its source. A source in capitals is the variable that
was read; `given` is one of your options or variables; `launch key` is derived from job, step and
restart; `this process`, `no launcher found` and `one node: loopback` mean that nothing had to be
read; `NVML` is NVIDIA's list of GPUs; `PMI` and `a file in the run's folder` are where tasks tell each
other their hosts before ranks start. A value without a source was counted here or follows from the
others. `spawn` is the number of ranks that this task starts.
""".replace("\n", " ")


class EntrypointParser(StrictArgumentParser):
    """An argparse parser whose errors are Failures: they carry a fix and our exit code."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; a command refuses its unknown options itself, so that the fix names its own help."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown and " " in self.prog:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Raise a Failure; argparse would exit with code 2."""
        fix = f"see `{self.prog} --help`"
        if unknown := re.search("unrecognized arguments: ((--[a-z-]+).*)", message):
            options = [*self._option_string_actions]
            close = [option for option in options if option.startswith(unknown[2])]
            if close := close or difflib.get_close_matches(unknown[2], options, 1):
                fix = f"write {close[0]}"
            elif self.prog.endswith("job-script"):
                fix = f"leave it out, and give it to sbatch: sbatch {unknown[1]} job.sh cfg.yaml"
        raise self.choice_failure(message) or Failure(message, fix=fix, code=ExitCode.USAGE)


def build_parser() -> EntrypointParser:
    """Build the parser of the command line."""
    parser = EntrypointParser(prog="entrypoint", description=__doc__, epilog=_EXAMPLES)
    commands = parser.add_subparsers(dest="command", required=True, metavar=COMMAND_NAMES)
    show = commands.add_parser(
        "show", help="what was detected, the plan, and where each value came from", description=SHOW_DESCRIPTION
    )
    show.add_argument("--json", action="store_true", help="one JSON object")
    doctor = commands.add_parser("doctor", help="what would break a training here, with a fix for each")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.add_argument("--full", action="store_true", help="also start all ranks once for an all-reduce")
    doctor.add_argument("--output", metavar="DIR", default="runs", help="folder that runs are kept in (default: runs)")
    doctor.add_argument("--workers", metavar="N", type=int, help="data.workers of your config, if it is a number")
    run = commands.add_parser("run", help="run a command once per rank with torchrun's contract set")
    run.add_argument("--logs", metavar="DIR", default="logs", help="folder for rank-NNNN.log (default: logs)")
    for command in (show, doctor, run):
        add_launch_arguments(command)
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="[--] CMD ...", help="the command")
    script = commands.add_parser("job-script", help="write a job script for your site (--scheduler)")
    job_script.add_job_script_arguments(script)
    # The job scripts themselves use the next two.
    commands.add_parser("job-functions")
    decision = commands.add_parser("requeue")
    decision.add_argument("srun_code", type=int)
    decision.add_argument("error_files", nargs="*")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments: argparse.Namespace | None = None
    protect_output_streams(os.environ)
    remember_typed_words(
        typed_program(sys.argv[0], sys.orig_argv[0], os.environ.get("PATH", ""), isolated=bool(sys.flags.isolated))
    )
    try:
        arguments = build_parser().parse_args(argv)
        code = _COMMANDS[arguments.command](arguments, os.environ)
        if arguments.command != "run":
            refuse_lost_output()
        return code
    except Failure as failure:
        if arguments is not None and getattr(arguments, "json", False):
            print(json.dumps({"error": failure.as_json()}))
        else:
            print_message(str(failure), sys.stderr)
        return int(failure.code)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if limited := resource_limit_failure(error):
            print_message(str(limited), sys.stderr)
            return int(limited.code)
        traceback.print_exc()
        return int(ExitCode.BUG)


def _show_command(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    planned = make_plan(environ, parse_launch_options(arguments, environ))
    print_message(json.dumps(plan_as_json(planned)) if arguments.json else plan_as_table(planned), sys.stdout)
    return 0


def _doctor_command(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    options = parse_launch_options(arguments, environ)
    check_context = context.CheckContext(
        environ=environ, options=options, output=Path(arguments.output), workers=arguments.workers
    )
    findings = examine.run_all_checks(check_context, launch_argv(arguments) if arguments.full else None)
    terminal = sys.stdout.isatty()
    colour = use_color(terminal, environ)
    text = report.as_text(
        findings, colour=colour, columns=(terminal_columns(1) or DEFAULT_COLUMNS) if terminal else None
    )
    write_styled((json.dumps(report.as_json(findings)) if arguments.json else text) + "\n", sys.stdout)
    return int(ExitCode.NODE if context.num_failed(findings) else ExitCode.OK)


def launch_argv(arguments: argparse.Namespace) -> list[str]:
    """The launch arguments as command-line words, for another process."""
    names = ("device", "procs_per_node", "nodes", "node_rank", "master_addr", "master_port")
    values = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _run_command(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        fix = shell_command("entrypoint run -- python script.py")
        raise Failure("no command to run", fix=fix, code=ExitCode.USAGE)
    planned = make_plan(environ, parse_launch_options(arguments, environ))
    program = [_find_own_program(program[0], environ), *program[1:]]
    return run_plan(planned, program, environ, log_dir=Path(arguments.logs), foreign=True)


def _find_own_program(name: str, environ: Mapping[str, str]) -> str:
    """The program beside this one, where `python` is not the user's own activated one, or PATH lacks the program.

    Who types .venv/bin/entrypoint has not changed PATH, and its Python has no torch.
    """
    on_path, own = shutil.which(name, path=environ.get("PATH")), os.path.join(os.path.dirname(sys.executable), name)
    activated = environ.get("VIRTUAL_ENV", "/nowhere") + os.sep
    is_python = name in ("python", "python3") and on_path != own and not (on_path or "").startswith(activated)
    if os.sep in name or not os.access(own, os.X_OK) or not (is_python or on_path is None):
        return name
    print_message(f"note: {name} is {own}, beside entrypoint; in PATH it is {on_path or 'not there'}", sys.stderr)
    return own


def _job_script_command(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    print(job_script.write_job_script(arguments), end="")
    return 0


def _job_functions_command(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    print(job_script.FUNCTIONS_FILE.read_text(), end="")
    return 0


def _requeue_command(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    print(run_errors.decide_requeue(arguments.srun_code, [Path(path) for path in arguments.error_files]))
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace, Mapping[str, str]], int]] = {
    "show": _show_command,
    "doctor": _doctor_command,
    "run": _run_command,
    "job-script": _job_script_command,
    "job-functions": _job_functions_command,
    "requeue": _requeue_command,
}


def plan_as_json(planned: Plan) -> dict[str, Any]:
    """The JSON object that `show --json` prints."""
    return {
        "launcher": planned.launcher,
        "world": asdict(planned.world),
        "hosts": list(planned.hosts),
        "spawn": planned.spawn,
        "cores": [format_cores(cores) for cores in planned.cores],
        "device": planned.device,
        "sources": dict(planned.sources),
        "warnings": list(planned.warnings),
    }


def plan_as_table(planned: Plan) -> str:
    """The plan as an aligned table of name, value and source."""
    world = asdict(planned.world)
    rows: list[tuple[str, str, str]] = [
        ("launcher", planned.launcher, ""),
        ("device", planned.device, planned.sources.get("device", "")),
    ]
    rows += [(name, str(value) or UNKNOWN, planned.sources.get(name, "")) for name, value in world.items()]
    rows += [("hosts", ",".join(planned.hosts) or UNKNOWN, planned.sources.get("hosts", ""))]
    rows += [("spawn", str(planned.spawn), "ranks that this task starts")]
    by_cores: dict[str, list[str]] = {}
    for rank, cores in enumerate(planned.cores, start=planned.world.local_rank):
        by_cores.setdefault(format_cores(cores), []).append(str(rank))
    rows += [
        ("cores", text, f"near the GPU{'s' * (len(ranks) > 1)} of local rank {', '.join(ranks)}")
        for text, ranks in by_cores.items()
    ]
    width = max(len(value) for _, value, _ in rows)
    lines = [f"{name:<17} {value:<{width}}  {source}".rstrip() for name, value, source in rows]
    return join_lines([*lines, *(f"WARNING: {warning}" for warning in planned.warnings)])


def format_cores(cores: Collection[int]) -> str:
    """`0-15,32-47`."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1][1:] = [core]
        else:
            parts.append([core])
    return ",".join("-".join(map(str, part)) for part in parts)


if __name__ == "__main__":
    sys.exit(main())
