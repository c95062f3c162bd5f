"""Runs become what they have in common and what keeps their speeds from being compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from train.report import figures
from train.report.document import Table
from train.report.figures import UNKNOWN
from train.report.reading import Run, whole
from train.settings import changes
from train.settings.config import RunConfig

# What decides the arithmetic of a step and what is fed into it. The loader: in memory or by workers, not how many; by
# workers, whether they decode the images or find them decoded.
SAME: Final[Mapping[str, Callable[[Run], str]]] = {
    "precision": lambda run: _precision(run),
    "data": lambda run: _data(run),
    "input": lambda run: _loader(run),
    "model": lambda run: _model(run),
    "global batch": lambda run: figures.told(run.config.get("train.global_batch_size")),
    "device": lambda run: CPU if _threads(run) else figures.told(run.fact("training", "device")),
    "step options": lambda run: _step(run),
}
BATCH: Final = "global batch"
DATA: Final = ("name", "image_size", "frames", "classes", "samples", "imbalance", "val_fraction", "group", "augment")
STEP: Final = (
    "train.compile",
    "train.parallel",
    "train.gradient_exchange",
    "train.reproducible",
    "train.sync_batchnorm",
    "train.ema_decay",
    "train.clip_grad_norm",
    "optim.name",
    "optim.args",
)
DEFAULTS: Final = changes.flat(asdict(RunConfig()))
# Differ between any two runs, and say nothing.
IDLE: Final = ("run.name", "run.output_dir")
NO_EFFECT: Final = "no effect"
CPU: Final = "CPU"
ON_CPU: Final = re.compile(r"CPU, (\d+) threads? per rank")
THREADS: Final = "threads per rank"
# Change the speed, and may follow from the number of ranks.
BESIDE: Final[Mapping[str, Callable[[Run], str]]] = {
    THREADS: lambda run: _threads(run) or "-",
    "micro batch": lambda run: figures.told(run.fact("training", "micro_batch_size")),
    "input": lambda run: figures.told(run.fact("training", "loader")),
    "data.root": lambda run: "-" if run.config.get("data.name") == "synthetic" else figures.told(_of(run, "data.root")),
}
# The cores of a node are shared out among its ranks: what more ranks gain, each loses in threads.
WHY: Final = {THREADS: " Fewer ranks have more cores each; start all with OMP_NUM_THREADS=1 to compare like with like."}
IDENTITY: Final = {"commit": "git", "hosts": "hosts", "launcher": "launcher"}
NAMED: Final = 5  # classes
WORLD: Final = ("world_size", "num_nodes", "local_world_size")
COLUMNS: Final = 6  # that differ, side by side on paper


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
    return Likeness(differs=differs | _classes(runs), weak=_weak(runs))


def _classes(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Equal counts of other classes are other data; told where the names were recorded."""
    names = [run.confusion.classes if run.confusion else None for run in runs]
    if len({known for known in names if known is not None}) < 2:
        return {}
    return {"classes": [UNKNOWN if one is None else _few(one) for one in names]}


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f", and {len(names) - NAMED} more" if len(names) > NAMED else "")


def caution(runs: Sequence[Run], found: Likeness) -> str:
    """Why no speed is set against another, with the values."""
    differences = "; ".join(f"{name}: {_by_run(runs, values)}" for name, values in found.differs.items())
    plain = "These runs did not compute the same: a difference in speed may come from that."
    return f"{plain} Not the same: {differences}."


def beside(runs: Sequence[Run], found: Likeness) -> list[str]:
    """What bears on the speed, or on what was trained on, of runs that are alike otherwise."""
    told = {*found.differs, *([THREADS] if "device" in found.differs else [])}
    values = {name: [read(run) for run in runs] for name, read in BESIDE.items() if name not in told}
    unlike = {name: each for name, each in values.items() if len(set(each)) > 1}
    return [f"Not the same {name}: {_by_run(runs, each)}.{WHY.get(name, '')}" for name, each in unlike.items()]


def unlike_threads(runs: Sequence[Run]) -> bool:
    """Whether ranks on the CPU had more threads in one run than in another."""
    return len({_threads(run) for run in runs}) > 1


def tables(runs: Sequence[Run]) -> list[Table]:
    """Every setting, version and derived value that is not the same in all runs: a line for each run."""
    facts = [_everything(run) for run in runs]
    keys = dict.fromkeys(key for fact in facts for key in fact)
    differ = [key for key in keys if len({fact.get(key, UNKNOWN) for fact in facts}) > 1]
    return [_table(runs, facts, differ[at : at + COLUMNS]) for at in range(0, len(differ), COLUMNS)]


def _table(runs: Sequence[Run], facts: Sequence[Mapping[str, str]], keys: Sequence[str]) -> Table:
    rows = [[run.name, *(fact.get(key, UNKNOWN) for key in keys)] for run, fact in zip(runs, facts, strict=True)]
    return Table(head=["run", *keys], rows=rows, left=1 + len(keys))


def _everything(run: Run) -> dict[str, str]:
    settings = {key: value for key, value in run.config.items() if key not in IDLE}
    found = {key: NO_EFFECT if key in run.idle else figures.setting(value) for key, value in settings.items()}
    for noun in ("training", "versions"):
        facts = run.fact(noun)
        found |= (
            {f"{noun}: {key}": figures.told(value) for key, value in facts.items()} if isinstance(facts, dict) else {}
        )
    return found | identity(run)


def identity(run: Run) -> dict[str, str]:
    """Which code ran, in which image, on what."""
    image, world = run.fact("image"), run.fact("world")
    found = {name: figures.told(run.fact(key)) for name, key in IDENTITY.items()}
    found |= {f"image: {key}": figures.told(value) for key, value in image.items()} if isinstance(image, dict) else {}
    return found | {key: figures.told(world.get(key)) for key in WORLD if isinstance(world, dict)}


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
    acting = [key for key in DATA if f"data.{key}" not in run.idle]
    given = {key: value for key in acting if (value := _of(run, f"data.{key}")) is not None}
    settings = [figures.told(given.pop("name", "")), *(f"{key} {figures.told(value)}" for key, value in given.items())]
    counts = [figures.told(run.fact("training", key)) for key in ("training_images", "held_out_images", "classes")]
    if not run.config or UNKNOWN in counts:
        return UNKNOWN
    return f"{', '.join(settings)} ({counts[0]} training and {counts[1]} held-out images, {counts[2]} classes)"


def _loader(run: Run) -> str:
    kind = run.fact("training", "loader")
    if not isinstance(kind, str) or "worker" not in kind:
        return kind if isinstance(kind, str) else UNKNOWN
    cached = "data.cache" not in run.idle and _of(run, "data.cache") is not None
    return "workers, from data.cache" if cached else "workers"


def _model(run: Run) -> str:
    parameters = run.fact("training", "parameters")
    name = run.config.get("model.name")
    if name is None or parameters is None:
        return UNKNOWN
    arguments = run.config.get("model.args")
    how = f" ({figures.told(arguments)})" if arguments else ""
    return f"{figures.told(name)}{how}, {figures.told(parameters)} parameters"


def _step(run: Run) -> str:
    return ", ".join(f"{key} {figures.setting(_of(run, key))}" for key in STEP) if run.config else UNKNOWN


def _of(run: Run, key: str) -> Any:
    """A setting; one that an older version did not know is at its default."""
    return run.config.get(key, DEFAULTS.get(key)) if run.config else None


def _threads(run: Run) -> str:
    """Of each rank on a CPU; nothing on a GPU, whose work they do not do, and where nobody recorded them."""
    found = ON_CPU.fullmatch(figures.told(run.fact("training", "device")))
    return found[1] if found else ""
