"""launch/scaling.sh: the jobs that it submits; the scheduler and the container only write down what they are asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import unmeasured

from train.config import load
from train.config.batches import compute_batch_sizes
from train.config.load import keep_last_overrides

SCRIPT = Path(__file__).parents[1] / "launch" / "scaling.sh"
# The container's train is the one that is tested; sbatch notes its words and gives numbers.
STAND_INS = {
    "apptainer": f'shift 2; exec {sys.executable} -m "$@"',
    "sbatch": 'printf "%s\\n" "$* ${SBATCH_GPUS_PER_NODE-} ${SBATCH_GRES-}" >> jobs; echo "$(grep -c "" jobs);alpha"',
}


WHOLE = {"SBATCH_GPUS_PER_NODE": "gpus-of-the-site", "SBATCH_GRES": "gpu:9"}


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script on a login node, in `folder`."""
    commands = folder / "bin"
    commands.mkdir()
    for name, body in STAND_INS.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    (folder / "train.sif").touch()
    (folder / "cfg.yaml").write_text("train: {global_batch_size: 96}\n")
    environ = unmeasured() | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", **variables}
    environ["PYTHONPATH"] = str(SCRIPT.parents[1])
    return subprocess.run(
        [SCRIPT, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=240
    )  # fmt: skip


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What was submitted for two numbers of nodes."""
    folder = tmp_path_factory.mktemp("scaling")
    words = ("--gpus-per-node=2", "--account=mine", "cfg.yaml", "data.samples=960", "run.name=mine")
    done = run(folder, *words, NODES="1 2", STEPS="50", **WHOLE)
    assert done.returncode == 0, done.stderr
    return (folder / "jobs").read_text().splitlines()


def test_each_number_of_nodes_is_a_job_and_the_first_counts_for_both_kinds(jobs: list[str]) -> None:
    asked = [
        re.findall(r"--nodes=(\d+) --job-name=(\S+) --output=%x-%j.out \S*/multigpu.sh ", job) for job in jobs[:-1]
    ]
    assert asked == [[("1", "scaling-strong-1")], [("2", "scaling-strong-2")], [("2", "scaling-weak-2")]]
    assert all("--gpus-per-node=2" in job and "data.samples=960" in job for job in jobs[:-1])


def test_no_job_is_given_a_key_twice(jobs: list[str]) -> None:
    for job in jobs[:-1]:
        keys = re.findall(r"([\w.]+)=", job.split("cfg.yaml")[1])
        assert len(set(keys)) == len(keys), job


def test_the_global_batch_stays_or_grows_with_the_nodes(jobs: list[str]) -> None:
    assert [re.findall(r"global_batch_size=(\d+)", job)[-1] for job in jobs[:-1]] == ["96", "96", "192"]


def test_each_job_trains_on_four_gpus_of_each_node_and_has_log_points_to_tell_its_speed(jobs: list[str]) -> None:
    own = ["train.micro_batch_size=96", "log.every_steps=100"]  # of the file
    words = [re.findall(r"[\w.]+=\S+", job.split("cfg.yaml")[1]) for job in jobs[:-1]]
    asked = [load.load_config(None, keep_last_overrides(own + each)) for each in words]
    assert all(
        compute_batch_sizes(config.train.global_batch_size, config.train.micro_batch_size, 8) for config in asked
    )
    assert [config.train.max_steps // config.log.every_steps for config in asked] == [5, 5, 5]


def test_a_micro_batch_behind_the_config_is_held(tmp_path: Path) -> None:
    done = run(tmp_path, "cfg.yaml", "train.micro_batch_size=32", NODES="1")
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "jobs").read_text().splitlines()[0]
    assert re.findall(r"micro_batch_size=(\w+)", asked)[-1] == "32"


def test_the_report_comes_after_all_of_them_and_names_the_runs_of_each_kind(jobs: list[str]) -> None:
    assert "--dependency=afterany:1:2:3" in jobs[-1]
    strong, weak = re.findall(r"train report (.*?) --output", jobs[-1])
    assert [Path(run).name for run in strong.split()] == ["scaling-strong-1", "scaling-strong-2"]
    assert [Path(run).name for run in weak.split()] == ["scaling-strong-1", "scaling-weak-2"]


def test_the_report_is_paid_as_the_trainings_and_takes_no_gpus(jobs: list[str]) -> None:
    assert all("--account=mine" in job for job in jobs)
    assert "--gpus-per-node" not in jobs[-1]
    assert "--mem=4G" in jobs[-1]
    assert ["gpus-of-the-site gpu:9" in job for job in jobs] == [True, True, True, False]


def test_the_jobs_may_have_a_script_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "job.sh").touch()
    done = run(tmp_path, "--gres=gpu:a100:4", "cfg.yaml", NODES="1", SCRIPT="job.sh")
    assert done.returncode == 0, done.stderr
    assert (
        "--gres=gpu:a100:4 --nodes=1 --job-name=scaling-strong-1 --output=%x-%j.out job.sh cfg.yaml"
        in (tmp_path / "jobs").read_text()
    )


def test_the_sites_settings_are_read_as_by_every_job_script(tmp_path: Path) -> None:
    (tmp_path / "site").write_text("export IMAGE=of-the-site.sif\n")
    assert "no image at of-the-site.sif" in run(tmp_path, "cfg.yaml", SITE_ENV="site").stderr


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        ((), {}, "no CONFIG"),
        (("cfg.yaml",), {"NODES": "two"}, "NODES='two'"),
        (("cfg.yaml",), {"SLURM_JOB_ID": "7"}, "not in a job"),
        (("cfg.yaml",), {"IMAGE": "other.sif"}, "no image at other.sif"),
        (("cfg.yaml",), {"SCRIPT": "other.sh"}, "no job script at other.sh"),
        (("cfg.yaml",), {"PATH": "/nonexistent"}, "no apptainer on the PATH"),
        (("cfg.yaml",), {"NODES": "5 7"}, "96 x 7 / 5"),
    ],
    ids=["no-config", "nodes", "in-a-job", "no-image", "no-script", "no-apptainer", "no-whole-batch"],
)
def test_what_cannot_be_submitted_is_refused(
    tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], message: str
) -> None:
    done = run(tmp_path, *words, **variables)
    assert message in done.stderr
    assert "fix:" in done.stderr
    assert done.returncode in (64, 66)
    assert not (tmp_path / "jobs").exists()
