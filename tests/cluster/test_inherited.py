"""Job scripts that are submitted or typed in the shell of another job: they train on all that their own job has."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pynvml
import pytest
from bed import Cluster, Done, running, until
from machines import REPOSITORY
from slurm_table import SUITES

# Neither older suite has Apptainer, and what a task of `train` sees is all that is asked for here.
APPTAINER = """#!/bin/bash
shift
[[ $1 != --nv ]] || shift
case "$2 ${3:-}" in
  train\\ where) echo none ;;
  train\\ * | torchrun\\ *)
    echo "task $SLURM_PROCID on $SLURMD_NODENAME: cores $(taskset -cp $$ | sed 's/.*: //'), GPUs $CUDA_VISIBLE_DEVICES"
    exit "${EXITS:-0}" ;;
  *) PYTHONPATH=/shared/lib exec python3 -m "${@:2}" ;;
esac
"""
# Without an environment (--export=NIL) the site's file is what a job knows.
SITE = "PATH=/shared/bin:$PATH IMAGE=config.yaml\n"
# Shape of a job -> what is given to sbatch for it, and the script.
OPTIONS = {
    "one-gpu": "--gpus-per-node=1 --cpus-per-task=2 {}/multigpu.sh",
    "one-node": "--gpus-per-node=2 --cpus-per-task=2 {}/multigpu.sh",
    "task-per-gpu": "--gpus-per-node=2 --ntasks-per-node=2 --cpus-per-task=1 {}/multigpu.sh",
    "two-nodes": "--nodes=2 --gpus-per-node=2 --cpus-per-task=2 {}/multigpu.sh",
    "two-nodes-task-per-gpu": "--nodes=2 --gpus-per-node=2 --ntasks-per-node=2 --cpus-per-task=1 {}/multigpu.sh",
    "torchrun": "--gpus-per-node=2 --cpus-per-task=2 {}/torchrun.sh",
}
WHOLE = ["cores 0,1, GPUs 0,1"]
SHARED = ["cores 0, GPUs 0,1", "cores 1, GPUs 0,1"]
TASKS = {
    "one-gpu": ["cores 0,1, GPUs 0"],
    "one-node": WHOLE,
    "task-per-gpu": SHARED,
    "two-nodes": WHOLE * 2,
    "two-nodes-task-per-gpu": SHARED * 2,
    "torchrun": WHOLE * 2,
}
# The shell that submits, and what else sbatch is given there.
SHELLS = {
    "the login node": ("bash -c", ""),
    "the login node, --exclusive": ("bash -c", "--exclusive"),
    "srun -c1 --pty": ("script -qec", ""),
    "salloc": ("salloc -Q -n1 -c1 --gpus-per-node=1 bash -c", ""),
    "two nodes": ("srun -N2 -n2 --kill-on-bad-exit=0 bash -c", ""),
    "--gpus-per-task": ("srun -n1 --gpus-per-task=1 bash -c", ""),
    "--gpus": ("srun -n1 --gpus=1 bash -c", ""),
    "--gpu-bind": ("srun -n1 --gpus-per-node=1 --gpu-bind=single:1 bash -c", ""),
    "--cpu-bind": ("srun -n1 --cpu-bind=map_cpu:0 bash -c", ""),
    "--mem-per-cpu": ("srun -n1 --mem-per-cpu=100 bash -c", "--mem=500"),
    "--mem": ("srun -n1 --mem=100 bash -c", "--mem-per-cpu=200"),
    "--mem-per-gpu": ("srun -n1 --gpus=1 --mem-per-gpu=100 bash -c", "--mem=500"),
    "--tres-per-task": ("srun -n1 --tres-per-task=gres/gpu:1 bash -c", ""),
    "--distribution": ("srun -n1 --distribution=cyclic --hint=nomultithread bash -c", ""),
    "--exclusive": ("srun -n1 --exclusive bash -c", ""),
    "--export=NIL": ("srun -n1 -c1 bash -c", "--export=NIL"),
    "--export=NONE": ("salloc -Q -n1 -c1 bash -c", "--export=NONE"),
}
ALL_SHAPES = ("srun -c1 --pty", "salloc", "two nodes")  # from the other shells two of the shapes are submitted
EACH = pytest.mark.parametrize(
    "slurm",
    [pytest.param(suite, id=name, marks=pytest.mark.together(f"shells of {suite}")) for suite, name in SUITES.items()],
    indirect=True,
)


def shapes(shell: str) -> list[str]:
    """The shapes that are submitted there."""
    return list(OPTIONS) if shell in ALL_SHAPES else ["one-node", "two-nodes-task-per-gpu"]


@pytest.fixture(scope="module")
def slurm(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes of two CPUs, to which Slurm binds tasks, and two stand-in GPUs."""
    request.getfixturevalue("older_nodes")(request.param)
    with running(SUITE=request.param, NODES="2", CPUS="2", GPUS="2", TASK_PLUGIN="task/affinity") as cluster:
        shutil.copytree(REPOSITORY / "launch", cluster.shared / "launch")
        shutil.copytree(REPOSITORY / "entrypoint", cluster.shared / "lib" / "entrypoint")
        shutil.copy(pynvml.__file__, cluster.shared / "lib")
        (cluster.shared / "bin").mkdir()
        (cluster.shared / "bin" / "apptainer").write_text(APPTAINER)
        (cluster.shared / "bin" / "apptainer").chmod(0o755)
        (cluster.shared / "launch" / "site.env").write_text(SITE)
        (cluster.shared / "config.yaml").touch()
        yield cluster


@pytest.fixture(scope="module")
def outputs(slurm: Cluster) -> dict[str, dict[str, str]]:
    """Shell -> shape -> what the job printed that was submitted there."""
    known = {}
    for number, (shell, (start, options)) in enumerate(SHELLS.items()):
        lines = [
            f"sbatch -Q --output=/shared/{number}-{shape}.out {options} "
            f"{OPTIONS[shape].format('/shared/launch')} config.yaml"
            for shape in shapes(shell)
        ]
        commands = "[[ ${SLURM_PROCID:-0} != 0 ]] || { " + "; ".join(lines) + "; }"
        if start.startswith("script"):
            done = in_terminal(slurm, f"srun -n1 -c1 --pty bash -c '{commands}'")
        else:
            done = slurm.login(*start.split(), commands)
        if "unrecognized option" not in done.stdout:
            known[shell] = number
    until(lambda: not slurm.login("squeue", "-h").stdout, 240, lambda: slurm.login("squeue").stdout)
    return {
        shell: {shape: text(slurm, f"{number}-{shape}.out") for shape in shapes(shell)}
        for shell, number in known.items()
    }


def text(cluster: Cluster, name: str) -> str:
    """A file in the shared folder; nothing if no job has written it."""
    path = cluster.shared / name
    return path.read_text() if path.exists() else ""


def in_terminal(cluster: Cluster, command: str) -> Done:
    """A command that needs a terminal."""
    return cluster.login("script", "-qec", command, "/dev/null", seconds=60)


def tasks(output: str) -> list[str]:
    """What the job's tasks saw, sorted by node."""
    return [seen for _, seen in sorted(re.findall(r"^task \d+ on (\w+): ([^\r\n]*)", output, re.M))]


@EACH
@pytest.mark.parametrize("shell", SHELLS)
def test_a_job_has_all_that_it_asked_for_from_whatever_shell_it_was_submitted(
    outputs: dict[str, dict[str, str]], shell: str
) -> None:
    if shell not in outputs:
        pytest.skip(f"machine: this Slurm has no {shell}")
    seen = {shape: tasks(output) for shape, output in outputs[shell].items()}
    assert seen == {shape: TASKS[shape] for shape in shapes(shell)}, outputs[shell]


@EACH
def test_a_binding_of_the_shell_that_submitted_is_named(outputs: dict[str, dict[str, str]]) -> None:
    note = "note: srun is not given what another job or step may have set: SLURM_CPU_BIND=quiet,mask_cpu:0x1"
    assert note in outputs["srun -c1 --pty"]["one-node"]
    assert "note: " not in outputs["the login node"]["one-node"]


TYPED = {
    "srun --pty": ("srun -n1 -c2 --gpus=2 --pty bash -c '{}'", "multigpu", WHOLE),
    "salloc": ("salloc -Q -N2 --ntasks-per-node=2 --gpus-per-node=2 bash -c '{}'", "multigpu", SHARED * 2),
    "srun --pty in salloc": (
        "salloc -Q -N2 --ntasks-per-node=2 --gpus-per-node=2 srun -N1 -n1 --pty bash -c '{}'", "multigpu",
        SHARED * 2,
    ),
    "torchrun in srun --pty": ("srun -n1 -c2 --gpus=2 --pty bash -c '{}'", "torchrun", WHOLE),
}  # fmt: skip


@EACH
@pytest.mark.parametrize("shell", TYPED)
def test_a_script_typed_in_a_job_trains_on_all_of_that_job_at_once(slurm: Cluster, shell: str) -> None:
    command, script, seen = TYPED[shell]
    done = in_terminal(slurm, command.format(f"/shared/launch/{script}.sh config.yaml"))
    assert (done.returncode, tasks(done.stdout)) == (0, seen), done.stdout
    assert f"To submit it: sbatch /shared/launch/{script}.sh config.yaml" in done.stdout


@EACH
def test_a_script_typed_in_a_job_does_not_requeue_the_shell(slurm: Cluster) -> None:
    typed = "EXITS=75 /shared/launch/multigpu.sh config.yaml; echo then $?"
    done = in_terminal(slurm, f"srun -n1 -c2 --gpus=1 --pty bash -c '{typed}'")
    assert "exit code 75: not requeued, as your shell is the job" in done.stdout
    assert "then 75" in done.stdout


# Scripts of users who call srun themselves: the start says what their job has and their tasks do not see.
SHOW = "env PYTHONPATH=/shared/lib python3 -m entrypoint show --device cpu"
OWN_SCRIPTS = {
    "a binding of another shell": f"SLURM_CPU_BIND=quiet,mask_cpu:0x1 srun -c2 {SHOW}",
    "fewer CPUs than the job has": f"srun -c1 --exact {SHOW}",
}


@EACH
@pytest.mark.parametrize("srun", OWN_SCRIPTS)
def test_a_start_says_that_its_task_sees_one_core_of_two(slurm: Cluster, srun: str) -> None:
    name = f"own-{list(OWN_SCRIPTS).index(srun)}.out"
    slurm.login("sbatch", "--wait", "-n1", "-c2", f"--output=/shared/{name}", "--wrap", OWN_SCRIPTS[srun])
    assert "WARNING: this job has 2 CPUs on this node, and its tasks see 1. fix: " in text(slurm, name)


@EACH
def test_a_start_with_all_of_its_job_warns_of_nothing(slurm: Cluster) -> None:
    wrap = f"export SRUN_CPUS_PER_TASK=2; srun {SHOW}"
    slurm.login("sbatch", "--wait", "-n1", "-c2", "--output=/shared/all.out", "--wrap", wrap)
    assert "launcher" in text(slurm, "all.out")
    assert "WARNING" not in text(slurm, "all.out")


@EACH
def test_a_script_without_srun_is_refused_from_the_shell_of_a_step_too(slurm: Cluster) -> None:
    submit = f'sbatch -Q -N2 --output=/shared/none.out --wrap "{SHOW}; echo code \\$?"'
    slurm.login("srun", "-n1", "bash", "-c", submit)
    until(lambda: "code" in text(slurm, "none.out"), 60, lambda: slurm.login("squeue").stdout)
    assert "ERROR[76] inside a Slurm job but not started by srun" in text(slurm, "none.out")
