"""Writes job scripts: the ones in launch/, and others for a user's site.

A Slurm job script holds what a user reads and edits: the #SBATCH lines, the site's lines, the image
and one srun. Its functions come out of the image (job_functions.sh), because Slurm copies only the
batch script to the node. The scripts of other schedulers are filled-in job_templates.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from entrypoint import job_templates
from entrypoint.console import shell_command
from entrypoint.errors import ExitCode, Failure

FUNCTIONS_FILE: Final = os.path.join(os.path.dirname(__file__), "job_functions.sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """One kind of job script: what it is for, and what it asks of Slurm.

    Attributes:
        title: the first line of the script.
        nodes, gpus_per_node: the numbers that it asks for unless the user says otherwise.
        task_per_gpu: one task per GPU instead of one per node, which starts a process per GPU.
        words: what follows the sbatch options on the command line.
        prepare: the function that reads these words.
        notes: more lines for the head of the script.
    """

    title: str
    nodes: int = 1
    gpus_per_node: int = 4
    task_per_gpu: bool = False
    torchrun: bool = False
    words: str = "CONFIG [section.key=value ...]"
    prepare: str = "prepare_job"
    notes: tuple[str, ...] = ()


_TASK_PER_GPU_NOTES: Final = ("For sites where Slurm gives each GPU's process CPUs of its own.",)
SHAPES: Final = {
    "singlegpu": JobShape(title="Train on one GPU.", gpus_per_node=1),
    "multigpu": JobShape(title="Train on all GPUs of one node."),
    "multigpu_srun": JobShape(
        title="Train on all GPUs of one node, with one task per GPU.", task_per_gpu=True, notes=_TASK_PER_GPU_NOTES
    ),
    "multinode": JobShape(title="Train on all GPUs of several nodes.", nodes=2),
    "multinode_srun": JobShape(
        title="Train on all GPUs of several nodes, with one task per GPU.",
        nodes=2,
        task_per_gpu=True,
        notes=_TASK_PER_GPU_NOTES,
    ),
    "torchrun": JobShape(title="Train on all GPUs of several nodes with torchrun.", nodes=2, torchrun=True),
    "sweep": JobShape(
        title="Train once for each line of settings in FILE, on one GPU each.",
        gpus_per_node=1,
        words="CONFIG FILE [section.key=value ...]",
        prepare="prepare_sweep",
        notes=(
            "A line of FILE: optim.lr=0.1 train.epochs=20",
            "At most 4 of 10 runs at a time: sweep.sh --array=1-10%4 CONFIG FILE",
        ),
    ),
}
CPUS_PER_GPU: Final = 8
MODULE_EXAMPLE: Final = "# module load apptainer"
MODULE_EXAMPLES: Final = {
    "pbs": f"{MODULE_EXAMPLE} cray-pals",
    **dict.fromkeys(("gridengine", "lsf"), f"{MODULE_EXAMPLE} openmpi"),
}
IMAGE: Final = "train.sif"
DEFAULT_TIME: Final = "04:00:00"
# What `entrypoint job-script` can be asked for.
_OPTIONS: Final = (
    *("shape", "nodes", "gpus_per_node", "cpus_per_gpu", "time", "mem", "partition", "account", "qos", "constraint"),
    *("module", "bind", "image"),
)
COMMENT_COLUMN: Final = 38

_SITE_LINES = """
fail() {{ printf 'ERROR[%s] %s\\n  fix: %s\\n' "$@" >&2; exit "$1"; }}

# Your site: remove the # and change the values. For all job scripts at once, copy
# launch/site.env.example to launch/site.env. It is read from the folder that you submit from
# (SITE_ENV=FILE names another file), and wins over the lines here and above.
{site}
site=${{SITE_ENV:-launch/site.env}}
if [[ -n ${{SITE_ENV:-}} || -e $site ]]; then
  source "$site" || fail 64 "$site failed" "mend it; its last command must succeed"
fi
set -euo pipefail # after the site's lines: modules read variables that are not set

# Nothing below needs a change. IMAGE=FILE names another image.
image=${{IMAGE:-{image}}}
[[ -f $image ]] || fail 66 "no image at $image, seen from $PWD" "IMAGE=/path/train.sif"
command -v apptainer >/dev/null ||
  fail 66 "no apptainer on the PATH" "load its module in the job script, or in launch/site.env"
if [[ ${{REQUIRE_SIGNED:-0}} != 0 ]]; then # before anything in the image runs
  apptainer verify --local ${{VERIFY_KEY:+--key "$VERIFY_KEY"}} "$image" ||
    fail 77 "$image is not signed with a key that is trusted here" "docs/image.md: Sign and verify"
fi

# The image brings two functions. {prepare} sets train_args, the arguments for `train`.
# Outside a job it checks the configuration, submits this script, and exits.
functions=$(apptainer exec "$image" entrypoint job-functions) ||
  fail 78 "$image cannot be run on $(uname -n): the lines above say why" \\
    "apptainer exec $image entrypoint job-functions, there, until it prints functions"
eval "$functions"
{prepare} "$@"
"""
_END = """
# Told to stop (time limit, preemption), `train` saves and ends with exit code 75; the next start
# continues there. requeue_or_exit requeues the job after 75, a dead node and the like, at most
# MAX_REQUEUES=20 times, and never after an error that would come again.
requeue_or_exit "$code"
"""
_SRUN = """
code=0
srun --kill-on-bad-exit=1 \\
  apptainer exec --nv "$image" train "${train_args[@]}" || code=$?
"""
_TORCHRUN = """
# The first host comes from Slurm: torchrun would compare host names. PET_NODE_RANK is torchrun's
# variable for the node's number, which only a task knows. The port differs from job to job.
torchrun=(torchrun --nnodes="$SLURM_JOB_NUM_NODES"
  --nproc-per-node="${ENTRYPOINT_PROCS_PER_NODE:-${SLURM_GPUS_ON_NODE:-gpu}}"
  --master-addr="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"
  --master-port="$((20000 + SLURM_JOB_ID % 12768))" -m train)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # torchrun's own default, without its warning
code=0
# shellcheck disable=SC2016 # the task's shell replaces SLURM_NODEID
srun --kill-on-bad-exit=1 bash -c 'PET_NODE_RANK=$SLURM_NODEID exec "$@"' bash \\
  apptainer exec --nv "$image" "${torchrun[@]}" "${train_args[@]}" || code=$?
"""


def add_job_script_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `entrypoint job-script`."""
    parser.add_argument("shape", nargs="?", metavar="NAME", help=f"{', '.join(SHAPES)} (default: by nodes and GPUs)")
    parser.add_argument(
        "--scheduler",
        metavar="NAME",
        default="slurm",
        help=f"slurm, {', '.join(job_templates.TEMPLATES)} (default: slurm)",
    )
    parser.add_argument("--nodes", metavar="N", help="number of nodes")
    parser.add_argument("--gpus-per-node", metavar="N", help="GPUs of each node")
    parser.add_argument("--cpus-per-gpu", metavar="N", help=f"CPUs for each GPU (default: {CPUS_PER_GPU})")
    parser.add_argument(
        "--time", metavar="D-HH:MM:SS", default=DEFAULT_TIME, help=f"time limit (default: {DEFAULT_TIME})"
    )
    parser.add_argument("--mem", metavar="SIZE", help="memory of a node, such as 200G; 0 is all of it")
    parser.add_argument("--partition", metavar="NAME", help="partition or queue")
    parser.add_argument("--account", metavar="NAME", help="account or project")
    for name in ("qos", "constraint"):
        parser.add_argument(f"--{name}", metavar="NAME", help=f"Slurm's --{name}")
    parser.add_argument("--module", metavar="NAME", action="append", default=[], help="module to load; repeatable")
    parser.add_argument("--bind", metavar="PATH", action="append", default=[], help="folder to bind; repeatable")
    parser.add_argument("--image", metavar="FILE", help=f"the image (default: {IMAGE})")


def write_job_script(arguments: argparse.Namespace) -> str:
    """The text of the job script that the arguments of `add_job_script_arguments` describe.

    Raises:
        Failure: USAGE, with the argument and its value.
    """
    _check_values(arguments)
    if arguments.scheduler != "slurm":
        return _fill_template(arguments)
    nodes, gpus = _parse_count(arguments, "nodes"), _parse_count(arguments, "gpus_per_node")
    name = arguments.shape or _choose_shape(nodes, gpus)
    if name not in SHAPES:
        raise Failure(f"no job script is called {name!r}", fix=f"one of {', '.join(SHAPES)}", code=ExitCode.USAGE)
    shape = SHAPES[name]
    nodes, gpus = nodes or shape.nodes, gpus or shape.gpus_per_node
    if (nodes > 1 and shape.nodes == 1) or (gpus > 1 and shape.gpus_per_node == 1):
        raise Failure(
            f"{name} does not fit --nodes {nodes} --gpus-per-node {gpus}",
            fix=shell_command("entrypoint job-script", "multinode" if nodes > 1 else "multigpu") + ", and your options",
            code=ExitCode.USAGE,
        )
    cpus_per_gpu = _parse_count(arguments, "cpus_per_gpu") or CPUS_PER_GPU
    site = [f"module load {module}" for module in arguments.module] or ["# module load apptainer"]
    bind = f"export APPTAINER_BIND={','.join(arguments.bind or ('/scratch', '/project'))}"
    site.append(f"{'' if arguments.bind else '# '}{bind} # folders that the container shall see")
    if nodes > 1:
        site.append("# source launch/fabric/infiniband.env || exit 66 # the network; or slingshot, ethernet")
    array = "--array=1-N " if shape.prepare == "prepare_sweep" else ""
    lines = [
        "#!/bin/bash",
        f"# {shape.title}",
        f"#   {name}.sh [sbatch options] {shape.words}",
        "#       checks the configuration and the data, then submits itself",
        f"#   sbatch {array}[sbatch options] {name}.sh {shape.words}",
        "#       submits at once. More: docs/clusters.md",
        *(f"# {line}" for line in shape.notes),
        "",
        *_sbatch_lines(arguments, shape, nodes, gpus, cpus_per_gpu),
    ]
    text = "\n".join(lines) + "\n"
    text += _SITE_LINES.format(site="\n".join(site), image=arguments.image or IMAGE, prepare=shape.prepare)
    return text + (_TORCHRUN if shape.torchrun else _SRUN) + _END


def _fill_template(arguments: argparse.Namespace) -> str:
    """The job script of another scheduler than Slurm."""
    name = arguments.scheduler
    if name not in job_templates.TEMPLATES:
        names = ", ".join(("slurm", *job_templates.TEMPLATES))
        raise Failure(f"no scheduler is called {name!r} here", fix=f"one of {names}", code=ExitCode.USAGE)
    template = job_templates.TEMPLATES[name]
    requested = [option for option in _OPTIONS if getattr(arguments, option) not in (None, [], DEFAULT_TIME)]
    if unused := [option for option in requested if option not in template.options]:
        option = f"--{unused[0].replace('_', '-')}" if unused[0] != "shape" else repr(arguments.shape)
        raise Failure(f"a script for {name} has no place for {option}", fix=f"leave out {option}", code=ExitCode.USAGE)
    nodes, gpus = _parse_count(arguments, "nodes") or 2, _parse_count(arguments, "gpus_per_node") or 4
    cpus_per_gpu = _parse_count(arguments, "cpus_per_gpu") or CPUS_PER_GPU
    seconds = _seconds(arguments.time)
    site = [f"module load {module}" for module in arguments.module] or [MODULE_EXAMPLES.get(name, MODULE_EXAMPLE)]
    bind = f"export APPTAINER_BIND={','.join(arguments.bind or ('/scratch', '/project'))}"
    site.append(f"{'' if arguments.bind else '# '}{bind} # folders that the container shall see")
    values = {
        "NODES": nodes,
        "GPUS": gpus,
        "RANKS": nodes * gpus,
        "CPUS": gpus * cpus_per_gpu,
        "CPUS_PER_GPU": cpus_per_gpu,
        "TIME": f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}",
        "MINUTES": -(-seconds // 60),
        "SECONDS": seconds,
        "SECONDS_AND_TEN_MINUTES": seconds + 600,
        "IMAGE": arguments.image or template.image,
        "SITE": "\n".join(site),
        "CODES": (", " if name in ("kubernetes", "htcondor") else " ").join(
            str(int(code)) for code in ExitCode if code.requeue
        ),
    }
    optional = {name.upper(): getattr(arguments, name) for name in ("partition", "account")}
    lines = []
    for line in template.text.splitlines():
        if line == job_templates.EXAMPLE_LINES and None not in optional.values():
            continue
        missing = [key for key, value in optional.items() if f"@{key}@" in line and value is None]
        if missing:  # shown, for a user who needs it
            example = {"PARTITION": "gpu", "ACCOUNT": "my_project"}[missing[0]]
            line = line.replace(f"@{missing[0]}@", example)
            # Flux reads `## flux:` too.
            line = line.replace("# flux:", "# if needed, flux:") if name == "flux" else f"#{line}"
        lines.append(re.sub(r"@([A-Z_]+)@", lambda match: str((values | optional)[match[1]]), line))
    return "\n".join(lines) + "\n"


def _seconds(time: str) -> int:
    """Slurm's D-HH:MM:SS, HH:MM:SS, MM:SS or minutes as seconds."""
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = (0, *parts, 0)[:3]
    return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds


def _sbatch_lines(
    arguments: argparse.Namespace, shape: JobShape, nodes: int, gpus: int, cpus_per_gpu: int
) -> list[str]:
    tasks = gpus if shape.task_per_gpu else 1
    log_name = "slurm-%A_%a.out" if shape.prepare == "prepare_sweep" else "slurm-%j.out"
    # torchrun dies of USR1 and leaves its workers running.
    signal, reason = ("TERM", "; USR1 kills torchrun") if shape.torchrun else ("USR1", "")
    lines = [
        ("--job-name=train", ""),
        (f"--nodes={nodes}", ""),
        (f"--ntasks-per-node={tasks}", "one task, which starts one process per GPU"),
        (f"--gpus-per-node={gpus}", "as many as a node has" if gpus > 1 else ""),
        (
            f"--cpus-per-task={cpus_per_gpu * gpus // tasks}",
            f"{cpus_per_gpu} x --gpus-per-node; fewer if a node has fewer",
        ),
        (f"--time={arguments.time}", ""),
        (f"--output={log_name}", ""),
        ("--open-mode=append", "a requeued job continues its log"),
        ("--requeue", ""),
        (f"--signal={signal}@120", f"2 minutes before the end: save and stop{reason}"),
    ]
    if shape.task_per_gpu:
        lines[2] = (f"--ntasks-per-node={tasks}", "as many as --gpus-per-node")
        lines[4] = (f"--cpus-per-task={cpus_per_gpu}", "for each GPU")
    elif gpus == 1:
        lines[2], lines[4] = ("--ntasks-per-node=1", ""), (f"--cpus-per-task={cpus_per_gpu}", "")
    optional = [("partition", "gpu", ""), ("account", "my_project", ""), ("qos", None, ""), ("constraint", None, "")]
    if gpus == 1:
        optional += [("mem", "64G", "where the default is too little")]
    else:
        optional += [("mem", "0", "all memory of the node, where the default is too little")]
    text = [_with_comment(f"#SBATCH {option}", comment) for option, comment in lines]
    text += [f"#SBATCH --{name}={value}" for name, *_ in optional if (value := getattr(arguments, name))]
    examples = [
        _with_comment(f"##SBATCH --{name}={example}", comment)
        for name, example, comment in optional
        if example and not getattr(arguments, name)
    ]
    if gpus > 1:
        examples.append(_with_comment("##SBATCH --exclusive", "no other job on the node: comparable speed"))
    if examples:
        text += ["# Most sites want some of these: remove one # to use a line.", *examples]
    return text


def _with_comment(line: str, comment: str) -> str:
    return f"{line:<{COMMENT_COLUMN}}# {comment}" if comment else line


def _choose_shape(nodes: int | None, gpus: int | None) -> str:
    if nodes and nodes > 1:
        return "multinode"
    return "singlegpu" if gpus == 1 else "multigpu"


def _parse_count(arguments: argparse.Namespace, name: str) -> int | None:
    text = getattr(arguments, name)
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,4}", text, re.ASCII):
        raise _bad_value(name, text, "a whole number from 1 to 99999")
    return int(text)


# The values become words of a shell script.
_PATTERNS: Final = {
    "time": r"(\d+-)?\d+(:\d\d){0,2}",
    "mem": r"\d+[KMGT]?",
    "image": r"[\w./@%+:-]+",
    "bind": r"[\w./@%+:-]+",
    "module": r"[\w./+-]+",
    **dict.fromkeys(("partition", "account", "qos"), r"[\w.,-]+"),
    "constraint": r"[\w.,-]+",
}


def _check_values(arguments: argparse.Namespace) -> None:
    for name, pattern in _PATTERNS.items():
        argument: str | Sequence[str] | None = getattr(arguments, name)
        for value in [argument] if isinstance(argument, str) else argument or []:
            if not re.fullmatch(pattern, value, re.ASCII):
                raise _bad_value(name, value, "a value without spaces and quotes, as Slurm takes it")


def _bad_value(name: str, value: str, expected: str) -> Failure:
    option = f"--{name.replace('_', '-')}"
    return Failure(f"{option} {value!r} cannot be used", expected=expected, fix=f"change {option}", code=ExitCode.USAGE)
