"""Runs become what they have in common and what keeps their speeds from being compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from train.report import figures
from train.report.document import Table
from train.report.reading import Run, whole
from train.settings import changes
from train.settings.config import RunConfig

UNKNOWN: Final = "not recorded"
# What decides the arithmetic of a step and what is fed into it. The loader: in memory or by workers, not how many.
SAME: Final[Mapping[str, Callable[[Run], str]]] = {
    "precision": lambda run: _precision(run),
    "data": lambda run: _data(run),
    "input": lambda run: _loader(run),
    "model": lambda run: _model(run),
    "global batch": lambda run: told(run.config.get("train.global_batch_size")),
    "device": lambda run: told(run.fact("training", "device")),
    "way to take a step": lambda run: _step(run),
}
BATCH: Final = "global batch"
DATA: Final = ("name", "image_size", "frames", "classes", "samples", "imbalance", "val_fraction", "group", "augment")
STEP: Final = (
    "train.compile",
    "train.parallel",
    "train.gradient_exchange",
    "train.reproducible",
    "train.sync_batchnorm",
    "optim.name",
)
DEFAULTS: Final = changes.flat(asdict(RunConfig()))
# Differ between any two runs, and say nothing.
IDLE: Final = ("run.name", "run.output_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """differs: what must be the same -> its values, run by run. weak: the global batch grows with the ranks."""

    differs: Mapping[str, Sequence[str]]
    weak: bool

    @property
    def alike(self) -> bool:
        """Whether speeds may be set against each other."""
        return not self.differs or (self.weak and set(self.differs) == {BATCH})


def likeness(runs: Sequence[Run]) -> Likeness:
    """What has more than one value, or a value that nobody recorded."""
    values = {name: [read(run) for run in runs] for name, read in SAME.items()}
    differs = {name: each for name, each in values.items() if len(set(each)) > 1 or UNKNOWN in each}
    return Likeness(differs=differs, weak=_weak(runs))


def caution(runs: Sequence[Run], found: Likeness) -> str:
    """Why no speed is set against another, with the values."""
    differences = "; ".join(f"{name}: {_by_run(runs, values)}" for name, values in found.differs.items())
    plain = "These runs did not compute the same, so their speeds say nothing about each other."
    return f"{plain} Not the same: {differences}."


def table(runs: Sequence[Run]) -> Table:
    """Every setting, version and derived value that is not the same in all runs."""
    facts = [_everything(run) for run in runs]
    rows = [
        [key, *(fact.get(key, UNKNOWN) for fact in facts)] for key in dict.fromkeys(k for fact in facts for k in fact)
    ]
    differ = [row for row in rows if len(set(row[1:])) > 1]
    return Table(head=["", *(run.name for run in runs)], rows=differ, left=1 + len(runs))


def _everything(run: Run) -> dict[str, str]:
    found = {key: setting(value) for key, value in run.config.items() if key not in IDLE}
    for noun in ("training", "versions"):
        facts = run.fact(noun)
        found |= {f"{noun}: {key}": told(value) for key, value in facts.items()} if isinstance(facts, dict) else {}
    return found


def _by_run(runs: Sequence[Run], values: Sequence[str]) -> str:
    by_value: dict[str, list[str]] = {}
    for run, value in zip(runs, values, strict=True):
        by_value.setdefault(value, []).append(run.name)
    return ", ".join(f"{value} ({' and '.join(names)})" for value, names in by_value.items())


def _weak(runs: Sequence[Run]) -> bool:
    """The same batch for each rank, on more than one number of ranks."""
    batches = [(whole(run.config.get("train.global_batch_size")), figures.ranks(run)) for run in runs]
    shares = {batch / ranks if batch and ranks else None for batch, ranks in batches}
    return len(shares) == 1 and None not in shares and len({ranks for _, ranks in batches}) > 1


def _precision(run: Run) -> str:
    """The one in effect: `auto` is not the same everywhere."""
    asked, effective = run.config.get("train.precision"), run.fact("training", "precision")
    found = effective if isinstance(effective, str) else asked if asked != "auto" else None
    if not isinstance(found, str):
        return UNKNOWN
    return f"{found} with TF32" if run.config.get("train.tf32") is True and found == "fp32" else found


def _data(run: Run) -> str:
    given = {key: value for key in DATA if (value := _of(run, f"data.{key}")) is not None}
    settings = [f"{key} {told(value)}" for key, value in given.items()]
    counts = [told(run.fact("training", key)) for key in ("training_images", "held_out_images", "classes")]
    if not settings or UNKNOWN in counts:
        return UNKNOWN
    return f"{', '.join(settings)} ({counts[0]} training and {counts[1]} held-out images, {counts[2]} classes)"


def _loader(run: Run) -> str:
    kind = run.fact("training", "loader")
    return UNKNOWN if not isinstance(kind, str) else "workers" if "worker" in kind else kind


def _model(run: Run) -> str:
    parameters = run.fact("training", "parameters")
    name = run.config.get("model.name")
    if name is None or parameters is None:
        return UNKNOWN
    return f"{told(name)} {told(run.config.get('model.args', {}))}, {told(parameters)} parameters"


def _step(run: Run) -> str:
    return ", ".join(f"{key} {told(_of(run, key))}" for key in STEP) if run.config else UNKNOWN


def _of(run: Run, key: str) -> Any:
    """A setting; one that an older version did not know is at its default."""
    return run.config.get(key, DEFAULTS.get(key)) if run.config else None


def setting(value: Any) -> str:
    """Of a configuration, where null is a value."""
    return "null" if value is None else told(value)


def told(value: Any) -> str:
    """As in JSON, without quotes around a text, and with commas in large numbers."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}" if abs(value) < 10**18 else f"{value:e}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
