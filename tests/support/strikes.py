"""What a cluster does to a job: each strike, and what was promised of the run that it hits."""

from __future__ import annotations

import time

from interruptions import Bench, Scenario
from launching import Launched

from entrypoint import SIGNAL_REPEAT_WINDOW_S

# To the batch shell alone, which ignores it: the ranks hear nothing before the limit.
UNWARNED = "--signal=B:USR1@1"
# A preempted job loses its node with all jobs on it, and so does one that is cut off: the others share the first node.
APART, BESIDE, TWO = "--nodelist=node03", "--nodelist=node01", "--exclude=node03"
NO_CHECKPOINT_BEFORE = "checkpoint.every_steps=null"
# The nodes of the bed end with Slurm's daemon: the kernel kills all else there, as if the power had gone.
KILL = "kill -9 $(pgrep -x slurmd)"


def cancel(stage: Bench, job: Launched) -> None:
    """Plain scancel: TERM, and KILL after KillWait."""
    job.job.signal()


def terminate_twice(stage: Bench, job: Launched) -> None:
    """TERM to the ranks as at the begin and at the end of a grace time, each twice: from Slurm and from Apptainer."""
    job.job.signal("-s", "TERM")
    time.sleep(SIGNAL_REPEAT_WINDOW_S + 0.5)  # beyond what the parent takes for the same signal, and within the save
    job.job.signal("-s", "TERM")


def usr1(stage: Bench, job: Launched) -> None:
    """USR1 to the steps, as `--signal=USR1@S` does."""
    job.job.signal("-s", "USR1")


def requeue(stage: Bench, job: Launched) -> None:
    """An administrator's or a user's."""
    stage.cluster.login("scontrol", "requeue", job.job.number)


def preempt(stage: Bench, job: Launched) -> None:
    """A job of a partition that comes first wants the whole node; this one's partition gives 20 s."""
    node = job.job.facts()["NodeList"]
    stage.cluster.submit("-p", "urgent", "--exclusive", "-w", node, script="sleep 1", cwd=job.job.cwd)


def nothing(stage: Bench, job: Launched) -> None:
    """The clock does it."""


def cut(stage: Bench, job: Launched) -> None:
    """Pull the cable of the node that does not run the job script."""
    stage.cluster.cut(other_node(stage, job))


def kill_node(stage: Bench, job: Launched) -> None:
    """Slurm's daemon and the job step die on the node that does not run the job script; nothing of it answers."""
    stage.cluster.root(other_node(stage, job), "bash", "-c", KILL)


def other_node(stage: Bench, job: Launched) -> str:
    facts = job.job.facts()
    nodes = stage.cluster.login("scontrol", "show", "hostnames", facts["NodeList"]).stdout.split()
    return next(node for node in nodes if node != facts["BatchHost"])


# Each leaves the others alone: they may run at the same time.
GENTLE = (
    Scenario(row="4", name="scancel", strike=cancel, words=(BESIDE,)),
    Scenario(row="5", name="scancel -s USR1", strike=usr1, words=(BESIDE,)),
    Scenario(
        row="5", name="signal=USR1@30", strike=nothing, words=(BESIDE, "--time=3", "--signal=USR1@30"), pace=1.0,
        after=0,
    ),
    Scenario(
        row="6", name="time limit without a signal", strike=nothing, words=(BESIDE, "--time=2", UNWARNED), pace=0.8,
        after=0,
    ),
    Scenario(row="4", name="preemption with grace", strike=preempt, words=(APART,)),
    Scenario(row="67", name="scontrol requeue", strike=requeue, words=(BESIDE,)),
    Scenario(
        row="72", name="TERM again during the save", strike=terminate_twice, words=(BESIDE, NO_CHECKPOINT_BEFORE),
        variables={"FAULT": "save:0:*:nap"},
    ),
    Scenario(row="5", name="scancel -s USR1 on two nodes", strike=usr1, words=(TWO,), script="multinode"),
)  # fmt: skip
# Each takes a node away, one after the other.
HARSH = (
    Scenario(
        row="8", name="link cut", strike=cut, process="node", script="multinode",
        codes=(None, 69, 91), killed=True, heals=True,
    ),
    Scenario(
        row="8", name="slurmd and step killed", strike=kill_node, process="node", script="multinode",
        codes=(69,), killed=True,
    ),
)  # fmt: skip
