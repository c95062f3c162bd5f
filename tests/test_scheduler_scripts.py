"""The job scripts of other schedulers, run with stand-ins of their commands and of Apptainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from entrypoint.job_script import OTHER_SCHEDULERS

ROOT = Path(__file__).parents[1]
# Run what stands behind the image's name, with the options and the variables of --env.
APPTAINER = f"""#!/bin/bash
shift # exec
while [[ $1 == -* ]]; do
  if [[ $1 == --env ]]; then
    IFS=, read -ra words <<<"$2"
    export "${{words[@]}}"
    shift
  fi
  shift
done
command=$2
shift 2
if [[ $command == train && $1 != where ]]; then
  env | grep ^ENTRYPOINT_ >"$SEEN/variables"
  exec "$SEEN/ranks"
fi
cd "$PWD" && PYTHONPATH={ROOT} exec {sys.executable} -m "$command" "$@"
"""
# mpiexec, mpirun and `flux run` start one task, which stands for all.
LAUNCHER = """#!/bin/bash
while [[ $1 != apptainer ]]; do shift; done
exec "$@"
"""
SUBMIT = """#!/bin/bash
{ printf '%s\\n' "$*"; printenv CONFIG IMAGE ENTRYPOINT_JOB_CHAIN; } >"$SEEN/submitted"
"""
FLUX = """#!/bin/bash
case $1 in
  getattr) echo f7 ;;
  run) shift && exec mpiexec "$@" ;;
  *) exec qsub "$@" ;;
esac
"""
JOBS = {
    "pbs": {"PBS_JOBID": "7.pbs"},
    "flux": {},
    "gridengine": {"JOB_ID": "7", "SGE_TASK_ID": "undefined", "NSLOTS": "8"},
    "lsf": {"LSB_JOBID": "7", "LSB_JOBINDEX": "0"},
}
SUCCESSORS = ("pbs", "flux")  # whose jobs submit them


@dataclass(frozen=True)
class Ended:
    """A job script's exit code, the words and variables of what it submitted, and what `train` saw."""

    code: int
    submitted: list[str]
    variables: dict[str, str]


RunScript = Callable[..., Ended]


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    (tmp_path / "bin").mkdir()
    commands = {"apptainer": APPTAINER, "mpiexec": LAUNCHER, "mpirun": LAUNCHER, "qsub": SUBMIT, "flux": FLUX}
    for name, text in commands.items():
        write_command(tmp_path / "bin" / name, text)
    (tmp_path / "cfg.yaml").write_text("run:\n  name: one\n")

    def run(scheduler: str, *, exits: int, writes: dict[str, object] | None = None, **environ: str) -> Ended:
        """exits: the launcher's exit code. writes: what this start leaves in errors/exit.json."""
        errors = tmp_path / "runs" / "one" / "errors"
        text = f"mkdir -p {errors}; printf %s '{json.dumps(writes)}' >{errors}/exit.json" if writes else ""
        write_command(tmp_path / "ranks", f"#!/bin/bash\n{text}\nexit {exits}\n")
        script = tmp_path / "spool" / "7.SC"  # the scheduler's copy
        script.parent.mkdir(exist_ok=True)
        write_command(script, (ROOT / "launch" / OTHER_SCHEDULERS[scheduler]).read_text())
        variables = {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "SEEN": str(tmp_path),
            "PBS_O_WORKDIR": str(tmp_path),
            "CONFIG": "cfg.yaml",
        }
        done = subprocess.run(
            [str(script)], cwd=tmp_path, env={**variables, **JOBS[scheduler], **environ}, timeout=60, check=False
        )
        seen, submitted = tmp_path / "variables", tmp_path / "submitted"
        lines = seen.read_text().splitlines() if seen.exists() else []
        return Ended(
            code=done.returncode,
            submitted=submitted.read_text().splitlines() if submitted.exists() else [],
            variables=dict(line.split("=", 1) for line in lines),
        )

    return run


def write_command(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def starts_again(scheduler: str, ended: Ended) -> bool:
    return bool(ended.submitted) if scheduler in SUCCESSORS else ended.code == 99


@pytest.mark.parametrize("scheduler", JOBS)
@pytest.mark.parametrize(("exits", "written", "again"), [(79, 75, True), (69, 65, False)], ids=["75|69", "65|69"])
def test_exit_codes_that_mpich_has_mixed_do_not_decide_whether_a_job_starts_again(
    run_script: RunScript, scheduler: str, exits: int, written: int, again: bool
) -> None:
    assert starts_again(scheduler, run_script(scheduler, exits=exits, writes={"code": written})) is again


@pytest.mark.parametrize(("exits", "again"), [(0, False), (65, False), (75, True), (91, True), (79, False)])
def test_the_launcher_s_exit_code_decides_if_the_run_left_no_word(
    run_script: RunScript, exits: int, again: bool
) -> None:
    assert starts_again("pbs", run_script("pbs", exits=exits)) is again


@pytest.mark.parametrize("scheduler", SUCCESSORS)
def test_a_job_ends_with_the_run_s_own_exit_code(run_script: RunScript, scheduler: str) -> None:
    assert run_script(scheduler, exits=69, writes={"code": 65}).code == 65


def test_what_an_earlier_start_left_does_not_decide(run_script: RunScript) -> None:
    run_script("lsf", exits=75, writes={"code": 75})
    assert run_script("lsf", exits=65).code == 65


@pytest.mark.parametrize("scheduler", SUCCESSORS)
def test_a_job_submits_its_own_copy_of_the_script_with_its_configuration(
    run_script: RunScript, tmp_path: Path, scheduler: str
) -> None:
    words, *values = run_script(scheduler, exits=75, IMAGE="other.sif").submitted
    assert words.split()[-1] == str(tmp_path / "spool" / "7.SC")
    assert values[:2] == ["cfg.yaml", "other.sif"]


def test_pbs_passes_all_that_a_successor_needs_to_it(run_script: RunScript) -> None:
    words = run_script("pbs", exits=75).submitted[0]
    assert words.startswith("-v CONFIG,IMAGE,ENTRYPOINT_JOB_CHAIN ")


@pytest.mark.parametrize(("scheduler", "first"), [("pbs", "7.pbs"), ("flux", "f7")])
def test_a_successor_knows_the_first_job_of_its_chain(run_script: RunScript, scheduler: str, first: str) -> None:
    assert run_script(scheduler, exits=75).submitted[-1] == first
    ended = run_script(scheduler, exits=75, ENTRYPOINT_JOB_CHAIN="1")
    assert (ended.submitted[-1], ended.variables["ENTRYPOINT_JOB_CHAIN"]) == ("1", "1")


@pytest.mark.parametrize(("scheduler", "job"), [("gridengine", "7.undefined"), ("lsf", "7.0")])
def test_the_starts_of_a_job_that_keeps_its_id_are_a_chain(run_script: RunScript, scheduler: str, job: str) -> None:
    assert run_script(scheduler, exits=0).variables["ENTRYPOINT_JOB_CHAIN"] == job


@pytest.mark.parametrize("scheduler", JOBS)
def test_a_job_whose_image_cannot_be_run_ends_and_submits_nothing(
    run_script: RunScript, tmp_path: Path, scheduler: str
) -> None:
    write_command(tmp_path / "bin" / "apptainer", "#!/bin/bash\nexit 255\n")
    ended = run_script(scheduler, exits=75)
    assert (ended.code, ended.submitted, ended.variables) == (78, [], {})


@pytest.mark.parametrize("scheduler", JOBS)
def test_the_tasks_know_when_the_job_ends(run_script: RunScript, scheduler: str) -> None:
    assert int(run_script(scheduler, exits=0).variables["ENTRYPOINT_DEADLINE"]) > 1_700_000_000
