"""Jobs of a real cluster that must not go on, or cannot save: each with its code, and the run as it was before."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bed import until
from interruptions import EVERY, Bench, final
from strikes import BESIDE, TWO, other_node
from trials import Trial, last_lines

RAW = "apptainer --quiet exec /shared/train.sif train --config config.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEnd:
    """name: how it is brought about. tried: returns what came of it, and all that the user read."""

    row: str
    name: str
    expected: Mapping[str, Any]
    tried: Callable[[Bench, str], tuple[dict[str, Any], str]]
    process: str = "job"


def trial(stage: Bench, end: DeadEnd) -> Trial:
    """Bring it about, and compare."""
    observed, text = end.tried(stage, end.name.replace(" ", "-"))
    compared = {name: observed.pop(name) for name in end.expected}
    return Trial(
        row=end.row, injector=end.name, process=end.process, expected=end.expected, observed=compared,
        ok=compared == end.expected, lines=last_lines(text), figures=observed,
    )  # fmt: skip


def crash_loop(stage: Bench, name: str) -> tuple[dict[str, Any], str]:
    """Each start dies at the same step, seven after the last checkpoint."""
    job = stage.start(name, "multigpu", BESIDE, FAULT="step:0:27:kill9")
    ended = job.job.wait(500)  # five starts
    committed = job.run.committed()
    return {"code": ended.code, "restarts": job.restarts, "checkpoint": committed}, ended.output


def two_at_once(stage: Bench, name: str) -> tuple[dict[str, Any], str]:
    """The same run is submitted while it trains."""
    first = stage.start(name, "multigpu", BESIDE, pace=1.0)
    first.train_until(0)
    second = stage.start(name, "multigpu", BESIDE)
    refused = second.job.wait(240)
    starts = len(first.run.record["starts"])
    first.job.signal("-s", "USR1")  # its second start is as fast as it can
    told = {"second": refused.code, "starts_meanwhile": starts, "first": first.job.wait(280).state}
    return told | {"weights_bit_equal": final(first.run) == stage.weights.result(280)}, refused.output


def folder_gone(stage: Bench, name: str) -> tuple[dict[str, Any], str]:
    """A requeued job does not see its run's folder. On one node: homes are not shared here, and the mark is in one."""
    job = stage.start(name, "multigpu", BESIDE, pace=0.1)
    job.train_until(10)
    job.job.signal("-s", "USR1")
    until(lambda: job.restarts == 1, 120, lambda: job.job.output)
    runs = job.run.folder.parent
    runs.rename(runs.with_name("elsewhere"))
    ended = job.job.wait(200)
    new = [path.name for path in runs.glob("*/checkpoints/step-*")]
    return {"code": ended.code, "checkpoints_made": new}, ended.output


def save_outlasts_the_grace(stage: Bench, name: str) -> tuple[dict[str, Any], str]:
    """A second start is cancelled, and its save does not end within KillWait: the first start's checkpoint counts."""
    job = stage.start(name, "multigpu", BESIDE, pace=0.1)
    job.train_until(25)
    job.job.signal()
    job.job.wait()
    kept = job.run.committed()
    slow = stage.start(name, "multigpu", BESIDE, "checkpoint.every_steps=null", pace=0.1, FAULT="save:0:*:sleep")
    slow.train_until(kept + 5)
    slow.job.signal()
    ended = slow.job.wait()
    last, left = max(slow.run.logged()), slow.run.committed()
    again = stage.start(name, "multigpu", BESIDE)
    text = ended.output + again.job.wait(280).output
    return {
        "state": ended.state, "checkpoint_kept": left == kept, "told": "--signal=" in text,
        "weights_bit_equal": final(again.run) == stage.weights.result(280),
        "steps_lost": last - kept,
    }, text  # fmt: skip


def rank_killed_elsewhere(stage: Bench, name: str) -> tuple[dict[str, Any], str]:
    """kill -9 of the rank on the node that does not run the job script; seconds until the job's output names it."""
    job = stage.start(name, "multinode", TWO, pace=0.1, MAX_REQUEUES="0")
    job.train_until(10)
    node = other_node(stage, job)
    killed = float(stage.cluster.root(node, "bash", "-c", "date +%s.%N; kill -9 $(pgrep -f '[t]rain.worker')").stdout)
    until(lambda: f"rank 1 on {node}" in job.job.output or f"({node}," in job.job.output, 90, lambda: job.job.output)
    seconds = time.time() - killed
    ended = job.job.wait()
    return {"code": ended.code, "named_after_s": round(seconds, 1), "node": node}, ended.output


def without_srun(stage: Bench, name: str) -> tuple[dict[str, Any], str]:
    """A batch script of one's own that forgot srun."""
    work = stage.folder(name)
    ended = stage.cluster.submit("-N2", "--ntasks-per-node=1", script=RAW, cwd=work).wait()
    made = [path.name for path in stage.cluster.here(work).glob("runs/*/logs/*")]
    return {"code": ended.code, "logs": made}, ended.output


def interactive(stage: Bench, name: str) -> tuple[dict[str, Any], str]:
    """`train` in the shell of salloc."""
    shell = ["salloc", "-Q", "-N1", "-n4", "bash", "-c", RAW]
    done = stage.cluster.login(*shell, cwd=stage.folder(name), seconds=120)
    return {"code": done.returncode}, done.stdout


DEAD_ENDS = (
    DeadEnd(
        row="65", name="killed at the same step in each start", tried=crash_loop, process="rank 0",
        expected={"code": 93, "checkpoint": 20},
    ),
    DeadEnd(
        row="26", name="two submissions of one run", tried=two_at_once,
        expected={"second": 73, "first": "COMPLETED", "starts_meanwhile": 1, "weights_bit_equal": True},
    ),
    DeadEnd(row="66", name="run folder not visible", tried=folder_gone, expected={"code": 66, "checkpoints_made": []}),
    DeadEnd(
        row="7", name="save longer than the grace time", tried=save_outlasts_the_grace, process="all ranks",
        expected={"state": "CANCELLED", "checkpoint_kept": True, "told": True, "weights_bit_equal": True},
    ),
    DeadEnd(
        row="1", name="rank killed on another node", tried=rank_killed_elsewhere, process="rank 1",
        expected={"code": 69},
    ),
    DeadEnd(row="73", name="batch script without srun", tried=without_srun, expected={"code": 76, "logs": []}),
    DeadEnd(row="73", name="shell of salloc", tried=interactive, expected={"code": 76}),
)  # fmt: skip


def image_lost(stage: Bench, signal: str, name: str) -> tuple[int, int, int | None]:
    """Where Slurm signals the image's file server too: the last step, the checkpoint's, and the run's own code."""
    job = stage.start(name, "multigpu", pace=0.1, MAX_REQUEUES="0")
    job.train_until(25)
    job.job.signal("-s", signal)
    job.job.wait()
    ending = job.run.ending
    return max(job.run.logged()), job.run.committed() or 0, ending.code if ending else None


def images_lost(found: Mapping[str, list[tuple[int, int, int | None]]]) -> Trial:
    """Row 71: a whole checkpoint is promised, and how often the last save succeeded is told."""
    every = [job for starts in found.values() for job in starts]
    whole = sum(committed >= last - last % EVERY > 0 for last, committed, _ in every)
    saved = {signal: sum(last == committed for last, committed, _ in starts) for signal, starts in found.items()}
    return Trial(
        row="71", injector="PROCTRACK=proctrack/linuxproc, " + ", ".join(found), process="all processes of the step",
        expected={"whole_checkpoints": len(every)}, observed={"whole_checkpoints": whole}, ok=whole == len(every),
        figures={"last_save_succeeded": saved, "of": {signal: len(starts) for signal, starts in found.items()},
                 "codes": [code for _, _, code in every]},
    )  # fmt: skip
