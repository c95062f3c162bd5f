"""Jobs of a real cluster that are stopped in mid-run, and what is left of their steps afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bed import Cluster, until
from launching import Launched, launch
from runs import Run
from trials import Trial, last_lines

from train.logging.metrics_logger import METRICS_FILE, read_events

STEPS, EVERY = 200, 20
LEFT = ("CANCELLED", "TIMEOUT", "FAILED")  # states of a job that nobody requeues
# As slow as PACE says in a job's first start, so that a fault finds it training; later as fast as it can.
MODEL = """
import os, time
from torch import nn
PACE = 0.0 if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" else float(os.environ.get("PACE", "0"))
class Paced(nn.Module):
    def forward(self, images):
        time.sleep(PACE)
        return images
def build(classes, shape):
    inside = shape.channels * shape.size[0] * shape.size[1]
    return nn.Sequential(Paced(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(inside, classes))
"""
CONFIG = f"""
run: {{name: run, output_dir: runs}}
launch: {{device: cpu}}
data: {{name: synthetic, samples: 960, image_size: 16, loader: memory}}
model: {{name: "paced:build"}}
optim: {{name: sgd, lr: 0.05, momentum: 0.9, schedule: cosine, warmup_epochs: 0}}
train: {{epochs: 100, max_steps: {STEPS}, global_batch_size: 24, micro_batch_size: 12, precision: fp32}}
eval: {{every_epochs: 100000}}
checkpoint: {{every_steps: {EVERY}, every_minutes: null}}
log: {{every_steps: 1, tensorboard: false}}
"""
TWO_RANKS = {"multigpu": {"ENTRYPOINT_PROCS_PER_NODE": "2"}, "multinode": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A cluster with the image, and the bytes of the weights that a run has which nobody interrupts."""

    cluster: Cluster
    place: Callable[[str], str]
    weights: Future[Mapping[str, bytes]]

    def start(self, name: str, script: str, *words: str, pace: float = 0.0, **variables: str) -> Launched:
        """Two ranks in a folder of their own, which may be there already: then the run in it goes on."""
        work = f"/shared/{name}"
        if not self.cluster.here(work).exists():
            self.folder(name)
        options = [word for word in words if word.startswith("-")]
        settings = [word for word in words if not word.startswith("-")]
        variables = {"PACE": str(pace)} | TWO_RANKS[script] | variables
        return launch(self.cluster, work, script, *options, "config.yaml", *settings, **variables)

    def folder(self, name: str) -> str:
        """A user's folder with the configuration and the model."""
        work = self.place(name)
        (self.cluster.here(work) / "config.yaml").write_text(CONFIG)
        (self.cluster.here(work) / "paced.py").write_text(MODEL)
        return work


def bench(cluster: Cluster, place: Callable[[str], str], pool: ThreadPoolExecutor) -> Bench:
    """Begin the run that nobody interrupts."""
    made = Bench(cluster=cluster, place=place, weights=Future())

    def uninterrupted() -> None:
        try:
            one = made.start("uninterrupted", "multigpu")
            one.job.wait(280)
            made.weights.set_result(final(one.run))
        except BaseException as error:
            made.weights.set_exception(error)

    pool.submit(uninterrupted)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How a run is interrupted, and what was promised of it.

    row: of failures.md. pace: seconds for each step of a job's first start. after: how many steps are left to it.
    codes: in errors/exit.json, None where Slurm was faster. killed: up to an interval and a save may be lost.
    heals: a node that was cut off is to be joined again.
    """

    row: str
    name: str
    strike: Callable[[Bench, Launched], None]
    process: str = "all ranks"
    script: str = "multigpu"
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    pace: float = 0.1
    after: int = 25
    codes: tuple[int | None, ...] = (75,)
    killed: bool = False
    heals: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An interrupted start: what it said at its end, the last step in its record, and where the next went on."""

    code: int | None
    last: int
    committed: int
    went_on: int

    @property
    def lost(self) -> int:
        """Steps that were done and had to be done again."""
        return self.last - self.went_on


def interrupted(stage: Bench, scenario: Scenario) -> Trial:
    """Start a run, interrupt it, let it come to its end, and compare that with what was promised."""
    name = scenario.name.replace(" ", "-")
    words, variables = (*scenario.words, f"--job-name={name}"), dict(scenario.variables)
    one = stage.start(name, scenario.script, *words, pace=scenario.pace, **variables)
    one.train_until(scenario.after)
    scenario.strike(stage, one)
    seen, last_job = _followed(stage, one, scenario)
    ended = last_job.job.wait(280)
    can_lose = EVERY + _steps_in_a_save(one.run, scenario.pace) if scenario.killed else 0
    once = one.run.logged() == list(range(1, STEPS + 1))
    equal = final(one.run) == stage.weights.result(280)
    as_promised = seen.code in scenario.codes and 0 <= seen.lost <= can_lose
    return Trial(
        row=scenario.row,
        injector=scenario.name,
        process=scenario.process,
        expected={"code": scenario.codes, "steps_lost": f"<= {can_lose}", "ended": "COMPLETED"},
        observed={"code": seen.code, "steps_lost": seen.lost, "ended": ended.state},
        ok=as_promised and once and equal and ended.state == "COMPLETED",
        lines=last_lines(one.job.output),
        figures={
            "last_step": seen.last, "checkpoint": seen.committed, "went_on_from": seen.went_on,
            "starts": _starts(one.run), "requeued": last_job is one,
            "each_step_once": once, "weights_bit_equal": equal, "script": scenario.script,
        },
    )  # fmt: skip


def _followed(stage: Bench, one: Launched, scenario: Scenario) -> tuple[Seen, Launched]:
    """Watch the interrupted start until the next one has begun; a job that nobody has requeued is submitted again."""
    run, starts = one.run, _starts(one.run)
    code, last, committed, then = None, 0, 0, one

    def over() -> bool:
        nonlocal code, last, committed
        ending, logged, found = run.ending, max(run.logged(), default=0), run.committed() or 0
        if _starts(run) > starts:  # what was read before may be the next start's
            return True
        code, last, committed = (ending.code if ending else code), max(last, logged), max(committed, found)
        return False

    until(lambda: over() or one.job.facts().get("JobState") in LEFT, 240, lambda: one.job.output)
    if not over():
        then = stage.start(scenario.name.replace(" ", "-"), scenario.script)
    until(over, 240, lambda: then.job.output)
    went_on = int(run.record["starts"][starts]["step"])
    return Seen(code=code, last=last, committed=committed, went_on=went_on), then


def _starts(run: Run) -> int:
    return len(run.record.get("starts", []))


def _steps_in_a_save(run: Run, pace: float) -> int:
    """How many steps may be done while one save is written behind the training."""
    events = read_events(run.folder / METRICS_FILE)
    longest = max((event["seconds"] for event in events if event["event"] == "checkpoint"), default=0.0)
    return math.ceil(longest / pace)


def final(run: Run) -> dict[str, bytes]:
    """The bits of the model and of the optimizer after the last step."""
    groups: dict[str, Any] = {group: run.weights(STEPS, group) for group in ("model", "optimizer")}
    return {f"{group}.{name}": array.tobytes() for group, arrays in groups.items() for name, array in arrays.items()}


def folder_of(cluster: Cluster) -> Callable[[str], str]:
    """Makes folders in which the user may write."""

    def make(name: str) -> str:
        path: Path = cluster.shared / name
        path.mkdir()
        path.chmod(0o777)
        return f"/shared/{name}"

    return make
