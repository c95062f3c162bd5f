"""The job scripts with stand-ins for Slurm and Apptainer: settings, options, lines, digests, codes."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint import ExitCode
from entrypoint.run_errors import RunErrors

LAUNCH = Path(__file__).parents[1] / "launch"
IN_A_JOB = {"SLURM_JOB_ID": "7"}
LINES = "train.max_steps=1\ntrain.max_steps=2 'optim.args={nesterov: true}\n\n"
# As `scontrol show job --oneliner` prints it: two nodes, and -c4 --ntasks-per-node=2 --hint=nomultithread.
RECORD = (
    "JobId=7 JobName=train BatchFlag=1 NumNodes=2 NumCPUs=16 NumTasks=4 CPUs/Task=4 ReqB:S:C:T=0:0:*:1 "
    "Socks/Node=* NtasksPerN:B:S:C=2:0:*:* CoreSpec=*"
)
# What a batch script inherits from `srun -c1 --gpus-per-task=1 --pty bash` and the like, and what srun reads of it.
INHERITED = {
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_CPU_BIND_LIST": "0x1", "SLURM_CPU_BIND_TYPE": "mask_cpu:",
    "SLURM_CPU_BIND_VERBOSE": "quiet", "SLURM_CPU_FREQ_REQ": "Low", "SLURM_CPUS_PER_GPU": "1",
    "SLURM_CPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "1", "SLURM_CORE_SPEC": "1", "SLURM_THREAD_SPEC": "1",
    "SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "2", "SLURM_EXACT": "1", "SLURM_EXCLUSIVE": "1",
    "SLURM_GPU_BIND": "single:1", "SLURM_GPU_FREQ": "low", "SLURM_GPUS": "1", "SLURM_GPUS_PER_NODE": "1",
    "SLURM_GPUS_PER_SOCKET": "1", "SLURM_GPUS_PER_TASK": "1", "SLURM_GRES": "gpu:1",
    "SLURM_GRES_FLAGS": "enforce-binding", "SLURM_HINT": "nomultithread", "SLURM_MEM_BIND": "quiet,local",
    "SLURM_MEM_BIND_LIST": "", "SLURM_MEM_BIND_PREFER": "", "SLURM_MEM_BIND_TYPE": "local",
    "SLURM_MEM_BIND_VERBOSE": "quiet", "SLURM_MEM_PER_CPU": "100", "SLURM_MEM_PER_GPU": "100",
    "SLURM_MEM_PER_NODE": "100", "SLURM_NCORES_PER_SOCKET": "1", "SLURM_NSOCKETS_PER_NODE": "1",
    "SLURM_NTASKS_PER_CORE": "1", "SLURM_NTASKS_PER_GPU": "1", "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_NTASKS_PER_SOCKET": "1", "SLURM_NTASKS_PER_TRES": "1", "SLURM_OVERCOMMIT": "1",
    "SLURM_THREADS_PER_CORE": "1", "SLURM_TRES_BIND": "gres/gpu:single:1", "SLURM_TRES_PER_TASK": "gres/gpu:1",
    "SRUN_EXPORT_ENV": "NIL", "SLURM_EXPORT_ENV": "NIL",
}  # fmt: skip
UNREADABLE = {"a quote has no end": "2", "empty": "3", "beyond the last": "4", "they count from 1": "0"}


# The container's entrypoint is the one that is tested; its train and Slurm only print what they are asked.
STAND_INS = {
    "apptainer": f"""
[[ $1 == exec ]] || exit 255 # verify: nothing here is signed
while [[ $1 != train && $1 != entrypoint ]]; do shift; done
case $1-$2 in
  entrypoint-*) exec {sys.executable} -m "$@" ;;
  train-where) echo "$FOLDER" ;;
  *) echo "in the container: $*" ;;
esac""",
    "srun": """[[ ! ${SRUN:-} ]] || eval "$SRUN"; shift; exec "$@" """,
    "sbatch": """echo "sbatch: $*" """,
    "scontrol": """if [[ $1 == show ]]; then echo "${RECORD:-}"; else echo "scontrol: $*"; fi""",
    "squeue": "echo node09",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder. Nothing here reads the image, so any file stands for it."""
    for name, text in {"train.sif": "image", "config.yaml": "", "lr.txt": LINES}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    for name, body in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def start(folder: Path, script: Path | str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in the folder, with an environment of its own."""
    path = f"{folder}/bin{os.pathsep}{os.environ['PATH']}"
    environ = {"PATH": path, "PYTHONPATH": str(LAUNCH.parent), "FOLDER": str(folder / "run"), **variables}
    return subprocess.run(
        [LAUNCH / script, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip


def digest(folder: Path) -> str:
    """What a job in the folder says of its image."""
    done = start(folder, "multigpu.sh", "config.yaml", **IN_A_JOB)
    return re.findall(r"^image train.sif sha256:(.*)", done.stdout, re.M)[0]


@pytest.mark.parametrize("text", ["[[ -d /nowhere ]] && export A=1\n", None], ids=["fails", "is not there"])
def test_settings_that_fail_are_named_and_nothing_goes_on(folder: Path, text: str | None) -> None:
    if text:
        (folder / "site.env").write_text(text)
    done = start(folder, "multigpu.sh", "config.yaml", SITE_ENV="./site.env")
    assert (done.returncode, "ERROR[64] ./site.env failed; fix: " in done.stderr) == (64, True), done.stderr


def test_modules_may_read_variables_that_are_not_set(folder: Path) -> None:
    (folder / "site.env").write_text('echo "loads $NOT_SET"; false; export IMAGE=of-the-site.sif\n')
    done = start(folder, "multigpu.sh", "config.yaml", SITE_ENV="site.env", **IN_A_JOB)
    assert "image of-the-site.sif sha256:" in done.stdout


def test_network_settings_that_are_not_there_end_the_script(folder: Path) -> None:
    text = (LAUNCH / "multinode.sh").read_text()
    script = folder / "job.sh"
    script.write_text(re.sub(r"^# (source launch/fabric/)", r"\1", text, flags=re.M))
    script.chmod(0o755)
    done = start(folder, script, "config.yaml")
    assert (done.returncode, "launch/fabric/infiniband.env: No such file" in done.stderr) == (66, True), done.stderr


def test_options_behind_the_script_are_refused_in_a_job_and_not_lost(folder: Path) -> None:
    done = start(folder, "multigpu.sh", "--nodes=2", "config.yaml", **IN_A_JOB)
    assert (
        done.returncode,
        "no CONFIG where it belongs: --nodes=2 config.yaml\n  fix: sbatch [options]" in done.stderr,
    ) == (64, True), done.stderr


@pytest.mark.parametrize("words", [(), ("--nodes", "4", "config.yaml"), ("train.epochs=3",), ("--help",)])
def test_what_is_no_config_is_not_taken_for_one(folder: Path, words: tuple[str, ...]) -> None:
    done = start(folder, "multinode.sh", *words)
    assert (done.returncode, done.stderr.startswith("ERROR[64] no CONFIG")) == (64, True), done.stderr
    assert "fix: sbatch [options] SCRIPT CONFIG" in done.stderr


def test_the_config_may_be_named_as_train_itself_wants_it(folder: Path) -> None:
    done = start(folder, "multigpu.sh", "--config", "config.yaml", **IN_A_JOB)
    assert "in the container: train --config config.yaml\n" in done.stdout, done.stderr


def test_outside_a_job_the_config_is_checked_and_the_script_submits_itself(folder: Path) -> None:
    done = start(folder, "multinode.sh", "--nodes=3", "config.yaml", "run.seed=1")
    *old_name, checks, notice, submits = done.stdout.splitlines()
    assert old_name == [
        "note: launch/multinode.sh goes with the next release. Use: sbatch --nodes=2 launch/multigpu.sh"
    ]
    assert notice.endswith(f"Type: sbatch --nodes=3 {LAUNCH}/multinode.sh config.yaml run.seed=1 ")
    assert checks == "in the container: train check --config config.yaml run.seed=1"
    assert submits == f"sbatch: --nodes=3 {LAUNCH}/multinode.sh config.yaml run.seed=1"


@pytest.mark.parametrize("text", ["2x", "-1", "1 2", "many"])
def test_a_cap_that_is_no_number_is_refused_and_not_taken_for_none(folder: Path, text: str) -> None:
    done = start(folder, "multigpu.sh", "config.yaml", MAX_REQUEUES=text, **IN_A_JOB)
    assert (done.returncode, f"MAX_REQUEUES={text} is not a number\n  fix: " in done.stderr) == (64, True)


@pytest.mark.parametrize("text", ["1", "true", "yes"])
def test_whatever_asks_for_a_signature_is_understood(folder: Path, text: str) -> None:
    done = start(folder, "multigpu.sh", "config.yaml", REQUIRE_SIGNED=text)
    assert (done.returncode, "ERROR[77] train.sif is not signed" in done.stderr) == (77, True), done.stderr


def test_all_lines_of_a_sweep_are_checked_before_it_submits_itself(folder: Path) -> None:
    done = start(folder, "sweep.sh", "config.yaml", "lr.txt")
    assert "check --config config.yaml train.max_steps=1 run.name=lr-1" in done.stdout
    assert (done.returncode, "ERROR[64] lr.txt has no line '2'" in done.stderr) == (64, True)
    assert "sbatch: " not in done.stdout


def test_a_sweep_that_is_no_array_job_says_so(folder: Path) -> None:
    done = start(folder, "sweep.sh", "config.yaml", "lr.txt", **IN_A_JOB)
    assert (done.returncode, done.stderr) == (
        64,
        "ERROR[64] this is no array job: which line of lr.txt is meant?\n  fix: sbatch --array=1-3 ...\n",
    )


@pytest.mark.parametrize("why", UNREADABLE)
def test_a_line_that_cannot_be_read_is_refused_and_not_read_in_part(folder: Path, why: str) -> None:
    done = start(folder, "sweep.sh", "config.yaml", "lr.txt", **IN_A_JOB, SLURM_ARRAY_TASK_ID=UNREADABLE[why])
    assert (done.returncode, "ERROR[64] lr.txt has no line" in done.stderr) == (64, True), done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train.max_steps=1", "run.seed=3 train.max_steps=1 run.name=lr-1"),
        ("train.max_steps=1 run.name=own", "run.seed=3 train.max_steps=1 run.name=own"),
    ],
)
def test_a_line_of_a_sweep_replaces_what_is_set_for_all(folder: Path, line: str, words: str) -> None:
    (folder / "lr.txt").write_text(line)
    common = ("run.name=all", "run.seed=3", "train.max_steps=9")
    done = start(folder, "sweep.sh", "config.yaml", "lr.txt", *common, **IN_A_JOB, SLURM_ARRAY_TASK_ID="1")
    assert f"in the container: train --config config.yaml {words}\n" in done.stdout, done.stderr


def test_a_sweep_is_submitted_with_as_many_tasks_as_lines(folder: Path) -> None:
    (folder / "lr.txt").write_text("run.seed=1\nrun.seed=2\n")
    done = start(folder, "sweep.sh", "--hold", "config.yaml", "lr.txt", "train.epochs=1")
    submitted = done.stdout.splitlines()[-1]
    assert submitted == f"sbatch: --array=1-2 --hold {LAUNCH}/sweep.sh config.yaml lr.txt train.epochs=1", done.stderr


def test_an_empty_file_of_lines_is_refused(folder: Path) -> None:
    (folder / "lr.txt").write_text("")
    done = start(folder, "sweep.sh", "config.yaml", "lr.txt")
    assert (done.returncode, "ERROR[66] no file of overrides at 'lr.txt'" in done.stderr) == (66, True)


def test_the_digest_is_that_of_the_image_which_a_link_means_now(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).write_text(name)
    for name in ("two", "one"):  # back to the older
        (folder / "train.sif").unlink()
        (folder / "train.sif").symlink_to(name)
        assert digest(folder) == hashlib.sha256(name.encode()).hexdigest()


@pytest.mark.parametrize("left", ["", "train.sif: OK\n", "6105d6cc"])
def test_what_is_no_digest_beside_the_image_is_not_taken_for_one(folder: Path, left: str) -> None:
    (folder / "train.sif.sha256").write_text(left)
    assert digest(folder) == hashlib.sha256(b"image").hexdigest()


def test_a_digest_beside_the_image_is_not_computed_again(folder: Path) -> None:
    (folder / "train.sif.sha256").write_text("a" * 64 + "  -\n")
    assert digest(folder) == "a" * 64


def test_a_digest_is_written_through_no_link(folder: Path) -> None:
    (folder / "other").write_text("another user's")
    (folder / "train.sif.sha256").symlink_to(folder / "other")
    assert digest(folder) == hashlib.sha256(b"image").hexdigest()
    assert (folder / "other").read_text() == "another user's"
    assert (folder / "train.sif.sha256").read_text() == f"{digest(folder)}  -\n"
    assert [path.name for path in folder.glob("train.sif.*")] == ["train.sif.sha256"]


def ends(folder: Path, srun: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A job whose srun runs these shell words."""
    return start(folder, "multigpu.sh", "config.yaml", **IN_A_JOB, SRUN=srun, **variables)


def writes(text: str, name: str = "exit.json") -> str:
    """What a run does at its end, as the shell's words."""
    return f'mkdir -p "$FOLDER/errors"; printf %s {shlex.quote(text)} >"$FOLDER/errors/{name}"; exit 9'


def test_a_job_ends_with_the_code_that_the_run_wrote_and_not_with_one_that_it_quotes(folder: Path) -> None:
    RunErrors.in_run(folder).write_exit(code=65, step=3, cause='the log says "code": 70')
    written = (folder / "errors" / "exit.json").read_text()
    assert ends(folder, writes(written)).returncode == 65


@pytest.mark.parametrize("name", ["low-rank-4", "exit.json", "a [b] *", "errors/rank-0"])
def test_a_job_finds_the_code_whatever_the_run_is_called(folder: Path, name: str) -> None:
    assert ends(folder, writes('{"code": 65}'), FOLDER=str(folder / name)).returncode == 65


def test_what_an_earlier_start_said_is_neither_believed_nor_removed(folder: Path) -> None:
    RunErrors.in_run(folder / "run").write_exit(code=75, step=3, cause="SIGTERM")
    assert ends(folder, "exit 9").returncode == 9
    assert RunErrors.in_run(folder / "run").read_exit() is not None


def test_the_name_of_a_file_in_a_run_is_no_option(folder: Path) -> None:
    both = writes('{"code": 65}').replace("exit 9", writes("{}", name="rank-0\n--help\n.json"))
    assert ends(folder, both).returncode == 65


@pytest.mark.parametrize("code", [code for code in ExitCode if code.requeue])
def test_a_code_of_the_next_start_s_is_requeued_and_kept(folder: Path, code: ExitCode) -> None:
    done = ends(folder, writes(f'{{"code": {code}}}'))
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (
        code,
        ["scontrol: requeue 7", f"exit code {code}: requeued, start 2"],
    )


def test_a_task_of_an_array_is_requeued_alone(folder: Path) -> None:
    done = ends(folder, "exit 75", SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="3")
    assert "scontrol: requeue 5_3\n" in done.stdout


def test_a_node_that_failed_is_excluded_beside_those_that_are_already(folder: Path) -> None:
    done = ends(folder, writes('{"code": 78, "host": "node02.site"}', name="node-node02.json"))
    lines = done.stdout.splitlines()[-2:]
    assert lines == [
        "exit code 78: requeued, start 2, not on node02",
        "scontrol: update JobId=7 ExcNodeList=node09,node02",
    ]


def test_a_job_is_requeued_as_often_as_allowed(folder: Path) -> None:
    done = ends(folder, "exit 75", MAX_REQUEUES="3", SLURM_RESTART_COUNT="3")
    assert (done.returncode, "exit code 75: not requeued, MAX_REQUEUES=3\n" in done.stdout) == (75, True)
    assert "scontrol" not in done.stdout


def test_a_job_that_is_cancelled_is_not_requeued(folder: Path) -> None:
    done = ends(folder, "kill -TERM $PPID; exit 75")
    assert (done.returncode, "scontrol" in done.stdout) == (75, False)


def test_a_job_ends_with_srun_s_code_where_the_image_does_not_answer(folder: Path) -> None:
    done = ends(folder, f"rm {folder}/bin/apptainer; exit 75")
    assert (done.returncode, "scontrol" in done.stdout) == (75, False)


def test_a_requeue_is_told_only_after_slurm_has_taken_it(folder: Path) -> None:
    (folder / "bin" / "scontrol").write_text("#!/bin/bash\nexit 1\n")
    done = ends(folder, "exit 75")
    assert (done.returncode, "requeued" in done.stdout) == (75, False)


def given_to_srun(folder: Path, script: str = "multigpu.sh", **variables: str) -> dict[str, str]:
    """The variables of Slurm, and PATH, in the environment of the job script's srun."""
    done = start(folder, script, "config.yaml", **IN_A_JOB, SRUN='env >"$FOLDER.env"', **variables)
    assert done.returncode == 0, done.stderr
    lines = (folder / "run.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if re.match(r"(SLURM|SRUN)_\w+=|PATH=", line))
    return {name: value for name, value in given.items() if name not in IN_A_JOB}


@pytest.mark.parametrize("script", ["multigpu.sh", "multinode_srun.sh", "torchrun.sh"])
def test_srun_gets_no_option_from_the_shell_that_submitted(folder: Path, script: str) -> None:
    job = {"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "node01"}
    given = given_to_srun(folder, script, **job, **INHERITED, RECORD="JobId=7 CPUs/Task=1 NtasksPerN:B:S:C=0:0:*:* ")
    assert given.pop("PATH")
    assert given == job | {"SLURM_EXPORT_ENV": "ALL", "SLURM_OVERLAP": "1"}


def test_srun_gets_the_job_s_own_numbers(folder: Path) -> None:
    given = given_to_srun(folder, **INHERITED, SLURM_NTASKS="1", SLURM_NPROCS="1", RECORD=RECORD)
    own = {name: value for name, value in given.items() if "PER" in name or name in ("SLURM_NTASKS", "SLURM_NPROCS")}
    assert own == {
        "SLURM_CPUS_PER_TASK": "4", "SRUN_CPUS_PER_TASK": "4", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4",
        "SLURM_NTASKS_PER_NODE": "2", "SLURM_THREADS_PER_CORE": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tasks", "cpus", "binding"), [("2", "4", "cores"), ("1", "4", None), ("2", "1", None), ("0", "4", "cores")]
)
def test_each_of_several_tasks_is_bound_to_its_cpus(folder: Path, tasks: str, cpus: str, binding: str | None) -> None:
    """A task without --cpus-per-task would be bound to one core, whatever its job has."""
    record = f"JobId=7 BatchFlag=1 CPUs/Task={cpus} NtasksPerN:B:S:C={tasks}:0:*:* "
    assert given_to_srun(folder, RECORD=record).get("SLURM_CPU_BIND") == binding


def test_one_thread_per_core_is_a_binding_of_its_own(folder: Path) -> None:
    given = given_to_srun(folder, RECORD=RECORD)
    assert (given["SLURM_THREADS_PER_CORE"], "SLURM_CPU_BIND" in given) == ("1", False)


@pytest.mark.parametrize(("variables", "cpus"), [({}, None), ({"SLURM_CPUS_PER_TASK": "4"}, "4")])
def test_without_the_job_s_record_the_cpus_are_those_of_the_environment(
    folder: Path, variables: dict[str, str], cpus: str | None
) -> None:
    given = given_to_srun(folder, **variables)
    assert (given.get("SLURM_CPUS_PER_TASK"), given.get("SRUN_CPUS_PER_TASK")) == (cpus, cpus)


def test_a_placement_that_srun_does_not_get_is_named(folder: Path) -> None:
    done = start(folder, "multigpu.sh", "config.yaml", **IN_A_JOB, **INHERITED)
    note = re.findall(r"^note: srun is not given.*", done.stdout, re.M)[0]
    assert {"SLURM_CPU_BIND=quiet,mask_cpu:0x1", "SLURM_DISTRIBUTION=plane"} <= set(note.split())
    assert "SLURM_GPUS_PER_NODE" not in note
    assert "not given" not in start(folder, "multigpu.sh", "config.yaml", **IN_A_JOB).stdout


def test_the_tasks_of_a_job_without_an_environment_have_a_path(folder: Path) -> None:
    (folder / "site.env").write_text("export -n PATH\n")  # as bash has it after sbatch --export=NIL
    assert given_to_srun(folder, SITE_ENV="./site.env")["PATH"].startswith(f"{folder}/bin")


def test_a_script_typed_in_an_interactive_job_says_so_and_requeues_nothing(folder: Path) -> None:
    done = ends(folder, "exit 75", RECORD=RECORD.replace("BatchFlag=1", "BatchFlag=0"))
    assert f"To submit it: sbatch {LAUNCH}/multigpu.sh config.yaml\n" in done.stdout
    assert (done.returncode, "exit code 75: not requeued" in done.stdout) == (75, True)
    assert "scontrol" not in done.stdout


@pytest.mark.parametrize("variables", [{}, IN_A_JOB], ids=["login node", "job"])
def test_an_image_that_cannot_be_run_is_named_and_nothing_goes_on(folder: Path, variables: dict[str, str]) -> None:
    (folder / "bin" / "apptainer").write_text("#!/bin/bash\necho 'FATAL: no squashfuse' >&2; exit 255\n")
    for script in ("multigpu.sh", "sweep.sh", "torchrun.sh"):
        done = start(folder, script, "config.yaml", "lr.txt", **variables)
        assert done.returncode == 78
        assert re.match(r"FATAL: no squashfuse\nERROR\[78\] train.sif cannot be run on .*\n  fix: .*\n$", done.stderr)
        assert done.stdout == ""
