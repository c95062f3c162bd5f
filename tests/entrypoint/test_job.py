"""The scheduler's job is read from the variables of the platforms' records."""

from __future__ import annotations

import pytest
from machines import captured

from entrypoint import JobInfo, job, job_info_from_environ
from entrypoint.platforms import PLATFORMS, Platform

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_RESTART_COUNT": "2",
    "SLURM_JOB_END_TIME": "1700003600",
    "SLURM_CLUSTER_NAME": "alpha",
    "SLURMD_NODENAME": "gpu007",
}


def test_all_that_slurm_says_of_a_job_is_read() -> None:
    assert job_info_from_environ(SLURM) == JobInfo(
        launcher="slurm", id="7", restart=2, ends_at=1_700_003_600, cluster="alpha", node="gpu007"
    )


@pytest.mark.parametrize("environ", [{}, {**SLURM, "SLURM_JOB_ID": ""}, {"SLURM_JOB_END_TIME": "1700003600"}])
def test_without_a_job_id_there_is_no_job(environ: dict[str, str]) -> None:
    assert job_info_from_environ(environ) is None


def test_a_job_needs_nothing_but_its_id() -> None:
    assert job_info_from_environ({"SLURM_JOB_ID": "7"}) == JobInfo(launcher="slurm", id="7")


@pytest.mark.parametrize("text", ["", "Unknown", "-1", "1e9", "٣", "9" * 13])
def test_a_number_that_cannot_be_read_is_absent(text: str) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": text, "SLURM_JOB_END_TIME": text}
    assert job_info_from_environ(environ) == JobInfo(launcher="slurm", id="7")


def test_a_captured_task_of_a_requeued_job_has_all_facts() -> None:
    info = job_info_from_environ(captured("requeued/task-0@node01"))
    assert info is not None
    assert (info.launcher, info.restart, info.node) == ("slurm", 1, "node01")
    assert None not in (info.ends_at, info.cluster)


@pytest.mark.parametrize(
    ("environ", "launcher", "number"),
    [
        ({"PBS_JOBID": "7[1].pbs"}, "pbs", "7[1].pbs"),
        ({"LSB_JOBID": "7", "LSB_JOBINDEX": "0"}, "lsf", "7"),
        ({"LSB_JOBID": "7", "LSB_JOBINDEX": "2"}, "lsf", "7.2"),
        ({"JOB_ID": "7", "SGE_TASK_ID": "undefined"}, "gridengine", "7"),
        ({"JOB_ID": "7", "SGE_TASK_ID": "3"}, "gridengine", "7.3"),
        ({"FLUX_JOB_ID": "f2cGjy7Q"}, "flux", "f2cGjy7Q"),
        ({"SKYPILOT_TASK_ID": "sky-1"}, "skypilot", "sky-1"),
        ({"AWS_BATCH_JOB_ID": "f3a1#1", "AWS_BATCH_JOB_NODE_INDEX": "1"}, "aws-batch", "f3a1"),
        ({"LWS_LEADER_ADDRESS": "train-0.train.default"}, "leaderworkerset", "train-0.train.default"),
        ({"BEAKER_WORKLOAD_ID": "01JWJ9"}, "beaker", "01JWJ9"),
        ({"OAR_JOB_ID": "7"}, "oar", "7"),
        ({"PJM_JOBID": "7"}, "pjm", "7"),
        ({"AZ_BATCH_JOB_ID": "train", "AZ_BATCH_TASK_ID": "7"}, "azure-batch", "train.7"),
    ],
)
def test_the_jobs_of_other_schedulers_have_an_id(environ: dict[str, str], launcher: str, number: str) -> None:
    assert job_info_from_environ(environ) == JobInfo(launcher=launcher, id=number)


def test_every_scheduler_that_starts_a_job_tells_its_id() -> None:
    """Otherwise nobody counts the starts of a job that gets nowhere. Kubeflow's pods: those of Kubernetes."""
    without = {each.name for each in PLATFORMS if each.starts != "rank" and "id" not in each.job}
    assert without == {"pet"}


def test_a_slurm_in_the_pods_of_kubernetes_knows_more_of_the_job() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "ENTRYPOINT_JOB_CHAIN": "train"}
    info = job_info_from_environ(SLURM | pod)
    assert (info.launcher, info.restart) == ("slurm", 2) if info else False


def test_grid_engine_says_that_a_job_was_restarted() -> None:
    environ = {"JOB_ID": "7", "SGE_TASK_ID": "undefined", "RESTARTED": "1"}
    assert job_info_from_environ(environ) == JobInfo(launcher="gridengine", id="7", restart=1)


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({"PBS_JOBID": "8.pbs"}, "pbs"),
        ({"FLUX_JOB_ID": "f2cGjy7Q"}, "flux"),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "kubernetes"),
    ],
)
def test_jobs_and_pods_of_a_chain_share_the_first_one_s_id(environ: dict[str, str], launcher: str) -> None:
    info = job_info_from_environ({**environ, "ENTRYPOINT_JOB_CHAIN": "7.pbs"})
    assert info == JobInfo(launcher=launcher, id="7.pbs", is_chain=True)


def test_a_pod_that_is_told_of_no_chain_has_no_job() -> None:
    assert job_info_from_environ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "ENTRYPOINT_JOB_CHAIN": ""}) is None


def test_a_variable_of_the_common_name_job_id_is_no_job() -> None:
    assert job_info_from_environ({"JOB_ID": "7"}) is None


def test_a_scheduler_with_an_id_and_an_end_is_one_entry_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = Platform(name="made-up", starts="script", job={"id": "MADE_UP_JOB", "ends_at": "MADE_UP_END"})
    monkeypatch.setattr(job, "_BY_KNOWLEDGE", (made_up,))
    info = job_info_from_environ({"MADE_UP_JOB": "a.1", "MADE_UP_END": "1700003600"})
    assert info == JobInfo(launcher="made-up", id="a.1", ends_at=1_700_003_600)
