"""Writes job scripts: the ones in launch/, and others for a user's site.

A script's text is a file in scripts/, with `@NAME@` where a value goes, `@NAME:DEFAULT@` where it may
be left to the file, and `@NAME?EXAMPLE@` in a line that is switched off unless the user gives the
value. What several scripts share is a part-*.sh, for which a line `@include FILE@` stands. A Slurm
script's functions come out of the image (job_functions.sh), because Slurm copies only the batch script
to the node. The scripts of other schedulers were written from manuals.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from entrypoint.console import shell_command
from entrypoint.errors import ExitCode, Failure

FUNCTIONS_FILE: Final = Path(__file__).with_name("job_functions.sh")
SCRIPTS: Final = Path(__file__).with_name("scripts")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """What one of Slurm's job scripts asks for unless the user says otherwise."""

    template: str = "slurm.sh"
    nodes: int = 1
    gpus_per_node: int = 4
    task_per_gpu: bool = False  # instead of one task per node, which starts a process per GPU
    replaced_by: str = ""  # the options with which multigpu.sh does the same


SHAPES: Final = {
    "multigpu": JobShape(),
    "sweep": JobShape(template="sweep.sh", gpus_per_node=1),
    "torchrun": JobShape(template="torchrun.sh", nodes=2),
    # The names of version 0.1 for one release: they say which options of multigpu.sh do the same.
    "singlegpu": JobShape(gpus_per_node=1, replaced_by="--gpus-per-node=1 --cpus-per-task=8"),
    "multigpu_srun": JobShape(task_per_gpu=True, replaced_by="--ntasks-per-node=4 --cpus-per-task=8"),
    "multinode": JobShape(nodes=2, replaced_by="--nodes=2"),
    "multinode_srun": JobShape(
        nodes=2, task_per_gpu=True, replaced_by="--nodes=2 --ntasks-per-node=4 --cpus-per-task=8"
    ),
}
SHAPE_NAMES: Final = ", ".join(name for name, shape in SHAPES.items() if not shape.replaced_by)
# The file in scripts/, and in launch/, of each scheduler but Slurm.
OTHER_SCHEDULERS: Final = {
    "pbs": "pbs.sh",
    "flux": "flux.sh",
    "gridengine": "gridengine.sh",
    "lsf": "lsf.sh",
    "htcondor": "htcondor.sub",
    "kubernetes": "kubernetes.yaml",
    "skypilot": "skypilot.yaml",
}
CPUS_PER_GPU: Final = 8
DEFAULT_TIME: Final = "04:00:00"
# The values in a template that each option of `entrypoint job-script` sets: an option is refused
# where a template has none of them, since it would be ignored without a word.
_OPTION_VALUES: Final = {
    "shape": ("TITLE",),
    "task_per_gpu": ("TASKS",),
    "nodes": ("NODES", "RANKS"),
    "gpus_per_node": ("GPUS", "RANKS", "GPU_REQUEST"),
    "cpus_per_gpu": ("CPUS", "CPUS_PER_GPU"),
    "time": ("TIME", "MINUTES", "SECONDS"),
    "gres": ("GPU_REQUEST",),
    **{name: (name.upper(),) for name in ("mem", "partition", "account", "qos", "constraint", "reservation")},
    **{name: (name.upper(),) for name in ("mail_type", "mail_user", "exclusive", "module", "bind", "fabric", "image")},
}
COMMENT_COLUMN: Final = 41
_VALUE: Final = re.compile(r"@([A-Z_]+)(?:([:?])([^@\n]*))?@")


def add_job_script_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `entrypoint job-script`."""
    parser.add_argument("shape", nargs="?", metavar="NAME", help=f"{SHAPE_NAMES} (default: multigpu)")
    parser.add_argument(
        "--scheduler",
        metavar="NAME",
        default="slurm",
        help=f"slurm, {', '.join(OTHER_SCHEDULERS)} (default: slurm)",
    )
    parser.add_argument("--nodes", metavar="N", help="number of nodes")
    parser.add_argument("--gpus-per-node", metavar="N", help="GPUs of each node")
    parser.add_argument(
        "--gres",
        metavar="gpu:TYPE:N",
        help="each node's GPUs, where a site wants --gres for them",
    )
    parser.add_argument(
        "--task-per-gpu", action="store_const", const="yes", help="a task for each GPU, with CPUs of its own"
    )
    parser.add_argument("--cpus-per-gpu", metavar="N", help=f"CPUs for each GPU (default: {CPUS_PER_GPU})")
    parser.add_argument(
        "--time", metavar="D-HH:MM:SS", default=DEFAULT_TIME, help=f"time limit (default: {DEFAULT_TIME})"
    )
    parser.add_argument("--mem", metavar="SIZE", help="memory of a node, such as 200G; 0 is all of it")
    parser.add_argument("--partition", metavar="NAME", help="partition or queue")
    parser.add_argument("--account", metavar="NAME", help="account or project")
    for name, metavar in (
        ("qos", "NAME"),
        ("constraint", "NAME"),
        ("reservation", "NAME"),
        ("mail-type", "EVENTS"),
        ("mail-user", "ADDRESS"),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=f"Slurm's --{name}")
    parser.add_argument("--exclusive", action="store_const", const="exclusive", help="no other job on the nodes")
    parser.add_argument("--module", metavar="NAME", action="append", default=[], help="module to load; repeatable")
    parser.add_argument(
        "--bind",
        metavar="PATH",
        action="append",
        default=[],
        help="folder to bind; repeatable; '$SCRATCH' in single quotes stays a variable",
    )
    parser.add_argument(
        "--fabric", metavar="NAME", help="network between the nodes: launch/fabric/NAME.env, which lies beside the job"
    )
    parser.add_argument("--image", metavar="FILE", help="the image (default: train.sif)")


def write_job_script(arguments: argparse.Namespace) -> str:
    """The text of the job script that the arguments of `add_job_script_arguments` describe.

    Raises:
        Failure: USAGE, with the argument and its value.
    """
    _check_values(arguments)
    nodes, gpus = _parse_count(arguments, "nodes"), _parse_gpus(arguments)
    if arguments.scheduler == "slurm":
        return _write_slurm_script(arguments, nodes, gpus)
    name = arguments.scheduler
    if name not in OTHER_SCHEDULERS:
        raise Failure(
            f"no scheduler is called {name!r} here",
            fix=f"one of slurm, {', '.join(OTHER_SCHEDULERS)}",
            code=ExitCode.USAGE,
        )
    text = _read_template(OTHER_SCHEDULERS[name], name, arguments)
    seconds = _seconds(arguments.time)
    values = {
        "TIME": f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}",
        "MINUTES": str(-(-seconds // 60)),
        "SECONDS": str(seconds),
        "SECONDS_AND_TEN_MINUTES": str(seconds + 600),
        "CODES": ", ".join(str(int(code)) for code in ExitCode if code.requeue),
    }
    return _fill(text, _read_values(arguments, nodes or 2, gpus or 4) | values)


def _write_slurm_script(arguments: argparse.Namespace, nodes: int | None, gpus: int | None) -> str:
    name = arguments.shape or "multigpu"
    if name not in SHAPES:
        typed = shell_command("entrypoint job-script", "--scheduler", name)
        fix = f"write `{typed}`" if name in OTHER_SCHEDULERS else f"one of {SHAPE_NAMES}"
        raise Failure(f"no job script of Slurm is called {name!r}", fix=fix, code=ExitCode.USAGE)
    shape = SHAPES[name]
    nodes, gpus = nodes or shape.nodes, gpus or shape.gpus_per_node
    gpu_request = f"gres={arguments.gres}" if arguments.gres else f"gpus-per-node={gpus}"
    if name == "sweep" and (nodes, gpus) != (1, 1):
        raise Failure(
            f"each run of a sweep has one GPU, and --nodes={nodes} --{gpu_request} is more",
            fix="leave sweep at one GPU: leave out --nodes, and write --gpus-per-node 1 or --gres gpu:TYPE:1",
            code=ExitCode.USAGE,
        )
    values = _read_values(arguments, nodes, gpus)
    task_per_gpu = shape.task_per_gpu or arguments.task_per_gpu
    values |= {
        "TASKS": str(gpus if task_per_gpu else 1),
        "GPU_REQUEST": gpu_request,
        "CPUS_PER_TASK": values["CPUS_PER_GPU" if task_per_gpu else "CPUS"],
    }
    if shape.replaced_by:
        values |= {
            "TITLE": "For one more release; use multigpu.sh:",
            "NOTICE": f'\necho "note: launch/{name}.sh goes with the next release. Use:" \\\n'
            f'  "sbatch {shape.replaced_by} launch/multigpu.sh"',
        }
    return _fill(_read_template(shape.template, name, arguments), values)


def _read_template(file: str, name: str, arguments: argparse.Namespace) -> str:
    """The script's text, which has a value for each option that the user gave."""
    text = (SCRIPTS / file).read_text()
    text = re.sub(r"@include (\S+)@\n", lambda match: (SCRIPTS / match[1]).read_text(), text)
    values_used = {match[1] for match in _VALUE.finditer(text)}
    if unused := [
        option
        for option, names in _OPTION_VALUES.items()
        if (value := getattr(arguments, option)) not in (None, [], DEFAULT_TIME)
        and (option, value) != ("shape", name)  # it chose this text
        and values_used.isdisjoint(names)
    ]:
        option = f"--{unused[0].replace('_', '-')}" if unused[0] != "shape" else repr(arguments.shape)
        raise Failure(f"a script for {name} has no place for {option}", fix=f"leave out {option}", code=ExitCode.USAGE)
    return text


def _read_values(arguments: argparse.Namespace, nodes: int, gpus: int) -> dict[str, str]:
    """What all templates may ask for; what the user did not give and has no default is not in it."""
    cpus_per_gpu = _parse_count(arguments, "cpus_per_gpu") or CPUS_PER_GPU
    options = (
        "time",
        "mem",
        "partition",
        "account",
        "qos",
        "constraint",
        "reservation",
        "exclusive",
        "fabric",
        "image",
    )
    return {option.upper(): value for option in options if (value := getattr(arguments, option))} | {
        "NODES": str(nodes),
        "GPUS": str(gpus),
        "RANKS": str(nodes * gpus),
        "CPUS": str(gpus * cpus_per_gpu),
        "CPUS_PER_GPU": str(cpus_per_gpu),
        **({"MAIL_TYPE": arguments.mail_type or "END,FAIL"} if arguments.mail_type or arguments.mail_user else {}),
        **({"MAIL_USER": f" --mail-user={arguments.mail_user}"} if arguments.mail_user else {}),
        **({"MODULE": " ".join(arguments.module)} if arguments.module else {}),
        **({"BIND": ",".join(arguments.bind)} if arguments.bind else {}),
    }


def _fill(template: str, values: Mapping[str, str]) -> str:
    lines = []
    for line in template.splitlines(keepends=True):
        filled = _VALUE.sub(lambda match: values[match[1]] if match[1] in values or not match[2] else match[3], line)
        if any(match[2] == "?" and match[1] not in values for match in _VALUE.finditer(line)):
            filled = _switch_off(filled)
        lines.append(re.sub(r"^(#+SBATCH \S.*?) # ", lambda match: f"{match[1]:<{COMMENT_COLUMN}} # ", filled))
    return "".join(lines)


def _switch_off(line: str) -> str:
    if line.startswith("# flux:"):  # Flux reads `## flux:` too
        return line.replace("# flux:", "# if needed, flux:")
    return f"#{line}" if line.startswith("#") else f"# {line}"


def _seconds(time: str) -> int:
    """Slurm's D-HH:MM:SS, HH:MM:SS, MM:SS or minutes as seconds."""
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours, minutes, seconds = ((*parts, 0, 0) if days or len(parts) == 3 else (0, *parts, 0))[:3]
    return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds


def _parse_count(arguments: argparse.Namespace, name: str) -> int | None:
    text = getattr(arguments, name)
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,4}", text, re.ASCII):
        raise _bad_value(name, text, "a whole number from 1 to 99999")
    return int(text)


def _parse_gpus(arguments: argparse.Namespace) -> int | None:
    """GPUs of each node, which --gres names too."""
    gpus = _parse_count(arguments, "gpus_per_node")
    if arguments.gres is None:
        return gpus
    number = int(arguments.gres.rpartition(":")[2])
    if gpus not in (None, number):
        raise _bad_value("gres", arguments.gres, f"{gpus} GPUs, as --gpus-per-node says, or no --gpus-per-node")
    return number


# What an option accepts and how a message shows it. The values become words of a shell script.
_FORMS: Final = {
    "time": (r"(\d+-)?\d+(:\d\d){0,2}", "24:00:00, 1-12:00:00, or minutes"),
    "gres": (r"gpu(:[A-Za-z][\w.-]*)?:[1-9]\d{0,4}", "gpu:N or gpu:TYPE:N"),
    "mem": (r"\d+[KMGT]?", "a size such as 128G, or 0 for all"),
    "image": (r"[\w./@%+:-]+", "a path without spaces, such as /project/train.sif"),
    "bind": (r"(\$\w+|\$\{\w+(:\?)?\}|[\w./@%+:-])+", "a path without spaces, such as /scratch or $SCRATCH"),
    "module": (r"[\w./+-]+", "one module, such as apptainer/1.4"),
    "mail_type": (r"[\w,]+", "events such as END,FAIL"),
    "mail_user": (r"[\w.+-]+(@[\w.-]+)?", "an address such as me@example.org"),
    "fabric": ("efa|ethernet|infiniband|slingshot", "efa, ethernet, infiniband or slingshot"),
    "constraint": (r"[\w.,&|*()\[\]-]+", "features such as a100 or a100&nvlink"),
    **dict.fromkeys(("partition", "account", "qos", "reservation"), (r"[\w.,-]+", "one name, such as gpu-a100")),
}


def _check_values(arguments: argparse.Namespace) -> None:
    for name, (pattern, form) in _FORMS.items():
        argument: str | Sequence[str] | None = getattr(arguments, name)
        for value in [argument] if isinstance(argument, str) else argument or []:
            if not re.fullmatch(pattern, value, re.ASCII):
                raise _bad_value(name, value, form)


def _bad_value(name: str, value: str, expected: str) -> Failure:
    option = f"--{name.replace('_', '-')}"
    return Failure(f"{option} {value!r} cannot be used", expected=expected, fix=f"change {option}", code=ExitCode.USAGE)
