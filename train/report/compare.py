"""This module compares runs: what differs, and how throughput scales with the number of ranks.

Where runs did not compute the same, it gives the reason instead of the ratios.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Final

from train.config import resume_rules
from train.config.schema import RunConfig
from train.data import registry
from train.report import plots, read
from train.report.document import Block, Paragraph, Section, Table
from train.report.plots import Panel, PlotSeries
from train.report.read import (
    NOT_RECORDED,
    RecordedRun,
    count_or_none,
    format_number,
    format_setting,
    format_value,
    num_ranks,
)

# What decides the arithmetic of a step and what is fed into it. The loader: in memory or by workers, not how many; by
# workers, whether they decode the images or find them decoded.
MUST_MATCH: Final[Mapping[str, Callable[[RecordedRun], str]]] = {
    "precision": lambda run: _describe_precision(run),
    "data": lambda run: _describe_data(run),
    "input": lambda run: _describe_loader(run),
    "model": lambda run: _describe_model(run),
    "global batch": lambda run: format_value(run.config.get("train.global_batch_size")),
    "device": lambda run: CPU_LABEL if _cpu_threads(run) else format_value(run.fact("training", "device")),
    "step options": lambda run: _describe_step_options(run),
}
GLOBAL_BATCH: Final = "global batch"
DATA_KEYS: Final = (
    "name",
    "image_size",
    "frames",
    "classes",
    "samples",
    "imbalance",
    "val_fraction",
    "group",
    "augment",
)
STEP_KEYS: Final = (
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
CONFIG_DEFAULTS: Final = resume_rules.flatten_config(asdict(RunConfig()))
# Differ between any two runs, and say nothing.
IGNORED_KEYS: Final = ("run.name", "run.output_dir")
NO_EFFECT: Final = "no effect"
CPU_LABEL: Final = "CPU"
CPU_DEVICE_PATTERN: Final = re.compile(r"CPU, (\d+) threads? per rank")
THREADS_PER_RANK: Final = "threads per rank"
# Change the speed, and may follow from the number of ranks.
SPEED_FACTORS: Final[Mapping[str, Callable[[RecordedRun], str]]] = {
    THREADS_PER_RANK: lambda run: _cpu_threads(run) or "-",
    "micro batch": lambda run: format_value(run.fact("training", "micro_batch_size")),
    "input": lambda run: format_value(run.fact("training", "loader")),
    "data.root": lambda run: "-" if _is_computed(run) else format_value(_config_value(run, "data.root")),
}
# The cores of a node are shared out among its ranks: what more ranks gain, each loses in threads.
DIFFERENCE_HINTS: Final = {
    THREADS_PER_RANK: " Fewer ranks have more cores each; start all with OMP_NUM_THREADS=1 to compare like with like."
}
IDENTITY_KEYS: Final = {"commit": "git", "hosts": "hosts", "launcher": "launcher"}
MAX_NAMED_CLASSES: Final = 5  # classes
WORLD_KEYS: Final = ("world_size", "num_nodes", "local_world_size")
MAX_COLUMNS: Final = 6  # that differ, side by side on paper


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifferences:
    """differs: what must be the same -> its values, run by run. weak: the global batch grows with the ranks."""

    differs: Mapping[str, Sequence[str]]
    weak: bool

    @property
    def alike(self) -> bool:
        """Whether speeds may be set against each other."""
        return not self.differs or (self.weak and set(self.differs) == {GLOBAL_BATCH})


def find_differences(runs: Sequence[RecordedRun]) -> RunDifferences:
    """What has more than one value, or a value that nobody recorded."""
    values = {name: [read(run) for run in runs] for name, read in MUST_MATCH.items()}
    differs = {name: each for name, each in values.items() if len(set(each)) > 1 or NOT_RECORDED in each}
    return RunDifferences(differs=differs | _class_differences(runs), weak=_is_weak_scaling(runs))


def _class_differences(runs: Sequence[RecordedRun]) -> dict[str, list[str]]:
    """Equal counts of other classes are other data; told where the names were recorded."""
    names = [run.confusion.classes if run.confusion else None for run in runs]
    if len({known for known in names if known is not None}) < 2:
        return {}
    return {"classes": [NOT_RECORDED if one is None else _format_class_names(one) for one in names]}


def _format_class_names(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED_CLASSES]) + (
        f", and {len(names) - MAX_NAMED_CLASSES} more" if len(names) > MAX_NAMED_CLASSES else ""
    )


def incomparable_caution(runs: Sequence[RecordedRun], found: RunDifferences) -> str:
    """Why no speed is set against another, with the values."""
    differences = "; ".join(f"{name}: {_format_by_value(runs, values)}" for name, values in found.differs.items())
    plain = "These runs did not compute the same: a difference in speed may come from that."
    return f"{plain} Not the same: {differences}."


def speed_cautions(runs: Sequence[RecordedRun], found: RunDifferences) -> list[str]:
    """What bears on the speed, or on what was trained on, of runs that are alike otherwise."""
    told = {*found.differs, *([THREADS_PER_RANK] if "device" in found.differs else [])}
    values = {name: [read(run) for run in runs] for name, read in SPEED_FACTORS.items() if name not in told}
    unlike = {name: each for name, each in values.items() if len(set(each)) > 1}
    return [
        f"Not the same {name}: {_format_by_value(runs, each)}.{DIFFERENCE_HINTS.get(name, '')}"
        for name, each in unlike.items()
    ]


def threads_differ(runs: Sequence[RecordedRun]) -> bool:
    """Whether ranks on the CPU had more threads in one run than in another."""
    return len({_cpu_threads(run) for run in runs}) > 1


def difference_tables(runs: Sequence[RecordedRun]) -> list[Table]:
    """Every setting, version and derived value that is not the same in all runs: a line for each run."""
    facts = [_all_facts(run) for run in runs]
    keys = dict.fromkeys(key for fact in facts for key in fact)
    differ = [key for key in keys if len({fact.get(key, NOT_RECORDED) for fact in facts}) > 1]
    return [_difference_table(runs, facts, differ[at : at + MAX_COLUMNS]) for at in range(0, len(differ), MAX_COLUMNS)]


def _difference_table(runs: Sequence[RecordedRun], facts: Sequence[Mapping[str, str]], keys: Sequence[str]) -> Table:
    rows = [[run.name, *(fact.get(key, NOT_RECORDED) for key in keys)] for run, fact in zip(runs, facts, strict=True)]
    return Table(head=["run", *keys], rows=rows, left=1 + len(keys))


def _all_facts(run: RecordedRun) -> dict[str, str]:
    settings = {key: value for key, value in run.config.items() if key not in IGNORED_KEYS}
    found = {key: NO_EFFECT if key in run.idle else format_setting(value) for key, value in settings.items()}
    for noun in ("training", "versions"):
        facts = run.fact(noun)
        found |= (
            {f"{noun}: {key}": format_value(value) for key, value in facts.items()} if isinstance(facts, dict) else {}
        )
    return found | run_identity(run)


def run_identity(run: RecordedRun) -> dict[str, str]:
    """Which code ran, in which image, on what."""
    image, world = run.fact("image"), run.fact("world")
    found = {name: format_value(run.fact(key)) for name, key in IDENTITY_KEYS.items()}
    found |= {f"image: {key}": format_value(value) for key, value in image.items()} if isinstance(image, dict) else {}
    return found | {key: format_value(world.get(key)) for key in WORLD_KEYS if isinstance(world, dict)}


def _format_by_value(runs: Sequence[RecordedRun], values: Sequence[str]) -> str:
    by_value: dict[str, list[str]] = {}
    for run, value in zip(runs, values, strict=True):
        by_value.setdefault(value, []).append(run.name)
    return ", ".join(f"{value} ({' and '.join(names)})" for value, names in by_value.items())


def _is_weak_scaling(runs: Sequence[RecordedRun]) -> bool:
    """The same batch for each rank, on more than one number of ranks."""
    batches = [(count_or_none(run.config.get("train.global_batch_size")), num_ranks(run)) for run in runs]
    shares = {batch / ranks if batch and ranks else None for batch, ranks in batches}
    return len(shares) == 1 and None not in shares and len({ranks for _, ranks in batches}) > 1


def _describe_precision(run: RecordedRun) -> str:
    """The one in effect: `auto` is not the same everywhere."""
    asked, effective = run.config.get("train.precision"), run.fact("training", "precision")
    found = effective if isinstance(effective, str) else asked if asked != "auto" else None
    if not isinstance(found, str):
        return NOT_RECORDED
    return f"{found} with TF32" if run.config.get("train.tf32") is True and found == "fp32" else found


def _describe_data(run: RecordedRun) -> str:
    acting = [key for key in DATA_KEYS if f"data.{key}" not in run.idle]
    given = {key: value for key in acting if (value := _config_value(run, f"data.{key}")) is not None}
    settings = [
        format_value(given.pop("name", "")),
        *(f"{key} {format_value(value)}" for key, value in given.items()),
    ]
    counts = [format_value(run.fact("training", key)) for key in ("training_images", "held_out_images", "classes")]
    if not run.config or NOT_RECORDED in counts:
        return NOT_RECORDED
    return f"{', '.join(settings)} ({counts[0]} training and {counts[1]} held-out images, {counts[2]} classes)"


def _describe_loader(run: RecordedRun) -> str:
    kind = run.fact("training", "loader")
    if not isinstance(kind, str) or "worker" not in kind:
        return kind if isinstance(kind, str) else NOT_RECORDED
    cached = "data.cache" not in run.idle and _config_value(run, "data.cache") is not None
    return "workers, from data.cache" if cached else "workers"


def _is_computed(run: RecordedRun) -> bool:
    return registry.find_source(str(run.config.get("data.name"))).origin == "computed"


def _describe_model(run: RecordedRun) -> str:
    parameters = run.fact("training", "parameters")
    name = run.config.get("model.name")
    if name is None or parameters is None:
        return NOT_RECORDED
    arguments = run.config.get("model.args")
    how = f" ({format_value(arguments)})" if arguments else ""
    return f"{format_value(name)}{how}, {format_value(parameters)} parameters"


def _describe_step_options(run: RecordedRun) -> str:
    return (
        ", ".join(f"{key} {format_setting(_config_value(run, key))}" for key in STEP_KEYS)
        if run.config
        else NOT_RECORDED
    )


def _config_value(run: RecordedRun, key: str) -> Any:
    """A setting; one that an older version did not know is at its default."""
    return run.config.get(key, CONFIG_DEFAULTS.get(key)) if run.config else None


def _cpu_threads(run: RecordedRun) -> str:
    """Of each rank on a CPU; nothing on a GPU, whose work they do not do, and where nobody recorded them."""
    found = CPU_DEVICE_PATTERN.fullmatch(format_value(run.fact("training", "device")))
    return found[1] if found else ""


X_LABEL: Final = "processes"
AXIS_HEADROOM: Final = 1.08  # above the highest dot, which would be cut by the edge
TARGET_EFFICIENCY: Final = 0.75  # the efficiency that computing centres ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingMeasurement:
    """Images per second on so many processes, all together; low and high: the spread over what was measured.

    speed_up: where it was measured in turns, pair by pair, which drifts of the machine spoil less than a quotient.
    """

    processes: int
    images_per_s: float
    speed_up: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingResult:
    """speed_up: times the images per second of the fewest processes. efficiency: of the ideal one, 1.0 is all."""

    processes: int
    images_per_s: float
    speed_up: float
    efficiency: float
    low: float
    high: float


def compute_scaling(points: Sequence[ScalingMeasurement]) -> list[ScalingResult]:
    """By the number of processes, held against the fewest. low and high become factors of speed-up too.

    The same for strong and weak scaling: both compare images per second, which is work over time.
    """
    rising = sorted((point for point in points if point.images_per_s > 0), key=lambda point: point.processes)
    return [_scale_against(rising[0], point) for point in rising]


def _scale_against(base: ScalingMeasurement, point: ScalingMeasurement) -> ScalingResult:
    speed_up = point.speed_up or point.images_per_s / base.images_per_s
    low = point.images_per_s if point.low is None else point.low
    high = point.images_per_s if point.high is None else point.high
    return ScalingResult(
        processes=point.processes,
        images_per_s=point.images_per_s,
        speed_up=speed_up,
        efficiency=speed_up * base.processes / point.processes,
        low=low / base.images_per_s,
        high=high / base.images_per_s,
    )


def scaling_panels(measured: Mapping[str, Sequence[ScalingMeasurement]]) -> list[Panel]:
    """Speed-up and efficiency of each name against ideal and the 75 % line; none where nothing was measured."""
    curves = {name: found for name, points in measured.items() if (found := compute_scaling(points))}
    ticks = sorted({float(point.processes) for found in curves.values() for point in found})
    if not ticks:
        return []
    ideal = [tick / ticks[0] for tick in ticks]
    up = [PlotSeries(name="ideal", x=ticks, y=ideal, style="ideal")]
    up += [
        PlotSeries(
            name=f"{TARGET_EFFICIENCY:.0%} of ideal",
            x=ticks,
            y=[TARGET_EFFICIENCY * one for one in ideal],
            style="limit",
        )
    ]
    share = [PlotSeries(name="ideal", x=ticks, y=[100.0 for _ in ticks], style="ideal")]
    share += [
        PlotSeries(
            name=f"{TARGET_EFFICIENCY:.0%} of ideal", x=ticks, y=[100 * TARGET_EFFICIENCY for _ in ticks], style="limit"
        )
    ]
    up += [_speed_up_series(name, number, found) for number, (name, found) in enumerate(curves.items())]
    share += [_efficiency_series(name, number, found) for number, (name, found) in enumerate(curves.items())]
    base = f"over {ticks[0]:g} {X_LABEL}" if ticks[0] > 1 else "over one"
    percent = Panel(title="Efficiency", x=X_LABEL, y="% of ideal", series=share, ticks=ticks, log_x=2, from_zero=True)
    return [
        Panel(title="Speed-up", x=X_LABEL, y=f"speed-up {base}", series=up, ticks=ticks, log_x=2, log_y=2),
        replace(percent, top=AXIS_HEADROOM * max(map(_highest_value, share)), legend="lower left"),
    ]


def _highest_value(series: PlotSeries) -> float:
    return max([*series.y, *(series.high or ())])


def _speed_up_series(name: str, number: int, found: Sequence[ScalingResult]) -> PlotSeries:
    x, y = [float(one.processes) for one in found], [one.speed_up for one in found]
    low, high = [one.low for one in found], [one.high for one in found]
    return PlotSeries(name=name, x=x, y=y, low=low, high=high, style="points", colour=number)


def _efficiency_series(name: str, number: int, found: Sequence[ScalingResult]) -> PlotSeries:
    """In percent."""
    share = [100 * one.efficiency / one.speed_up for one in found]  # of one time the base, on so many processes
    return PlotSeries(
        name=name,
        x=[float(one.processes) for one in found],
        y=[100 * one.efficiency for one in found],
        low=[one.low * part for one, part in zip(found, share, strict=True)],
        high=[one.high * part for one, part in zip(found, share, strict=True)],
        style="points",
        colour=number,
    )


MIN_TREND_POINTS: Final = 3  # numbers of processes before a trend can be told from a chance
MAX_PLAUSIBLE_EFFICIENCY: Final = 1.1  # of the ideal: more is no gift, but a base that was too slow
THROUGHPUT_TEXT: Final = (
    "Images per second between log points, all ranks together: the median. Start-up, the first log point of a start, "
    "evaluations and saves are not in it. "
)
QUARTILE_BARS_TEXT: Final = (
    "Bars are the quartiles: they show how much single log points vary, over the median of the fewest ranks, whose own "
    "spread is not in them. Whether two points differ, only repeated runs tell."
)
REPEATED_RUNS_TEXT: Final = (
    "Of several runs on as many ranks it is the median of theirs, and bars reach from the lowest quartile of any of "
    "them to the highest, over the median of the fewest ranks, whose own spread is not in them."
)
SCALING_TITLE: Final = "Scaling"
SCALING_KIND_TEXTS: Final = {
    "weak scaling": "Weak scaling: the global batch grows with the ranks, each computes as much as before. ",
    "strong scaling": "Strong scaling: the same global batch for any number of ranks. ",
    "unlike runs": "",
}


def scaling_section(runs: Sequence[RecordedRun], found: RunDifferences, *, anyway: bool) -> Section | None:
    """None where all runs had as many ranks. Without `anyway`, unlike runs get the reason instead of ratios."""
    if len({read.num_ranks(run) for run in runs}) < 2:
        return None
    measured, left = (
        scaling_measurements(runs),
        [Paragraph(text=f"{line}.", caution=True) for line in excluded_runs(runs)],
    )
    if len(measured) < 2:
        none = Paragraph(text="Speed-up needs the speed of runs on two numbers of ranks or more.")
        return Section(title=SCALING_TITLE, blocks=[none, *left])
    if not found.alike and not anyway:
        asked = "Speed-up and efficiency are left out for that reason. The option --compare-anyway draws them."
        return Section(title=SCALING_TITLE, blocks=[Paragraph(text=asked)])
    note = None if found.alike else f"Not comparable: not the same {', '.join(found.differs)}"
    kind = "unlike runs" if note else "weak scaling" if GLOBAL_BATCH in found.differs else "strong scaling"
    repeated = len(measured) < len(runs) - len(left)
    said = [
        Paragraph(
            text=SCALING_KIND_TEXTS[kind] + THROUGHPUT_TEXT + (REPEATED_RUNS_TEXT if repeated else QUARTILE_BARS_TEXT)
        )
    ] + ([Paragraph(text=f"{note}.", caution=True)] if note else [])
    doubt = f"not the same {THREADS_PER_RANK}" if threads_differ(runs) else None
    shown = scaling_blocks({kind: measured}, name="scaling", note=note, doubt=doubt)
    return Section(title=SCALING_TITLE, blocks=[*said, *left, *shown])


def excluded_runs(runs: Sequence[RecordedRun]) -> list[str]:
    """Which runs have no speed that ratios could be made of, and why."""
    speeds = {run.name: read.measured_throughput(run) for run in runs}
    why = {name: "no log point" if found is None else "first steps only" for name, found in speeds.items()}
    return [f"{name} is left out: {why[name]}" for name, found in speeds.items() if found is None or found.warm_up]


def scaling_measurements(runs: Sequence[RecordedRun]) -> list[ScalingMeasurement]:
    """One for each number of ranks, without first steps; of several runs the median."""
    by_ranks: dict[int, list[read.Throughput]] = {}
    for run in runs:
        if (speed := read.measured_throughput(run)) and speed.ranks and not speed.warm_up:
            by_ranks.setdefault(speed.ranks, []).append(speed)
    return [
        ScalingMeasurement(
            processes=ranks,
            images_per_s=median(speed.images_per_s for speed in speeds),
            low=min(speed.low for speed in speeds),
            high=max(speed.high for speed in speeds),
        )
        for ranks, speeds in sorted(by_ranks.items())
    ]


def scaling_blocks(
    measured: Mapping[str, Sequence[ScalingMeasurement]],
    *,
    name: str,
    note: str | None = None,
    doubt: str | None = None,
) -> list[Block]:
    """The picture and the table of what was measured, by kind of scaling. doubt: why there can be no verdict."""
    shown = scaling_panels(measured)
    if not shown:
        return []
    against = f"{' and '.join(measured)} against the ideal and {TARGET_EFFICIENCY:.0%} of it"
    found: list[Block] = [*plots.render_panels(name, shown, of=against, note=note)]
    for kind, of in measured.items():
        if not (scaled := compute_scaling(of)):
            found.append(Paragraph(text=f"{kind.capitalize()}: no throughput above 0.", caution=True))
            continue
        found.append(scaling_table(kind, scaled))
        most = max(one.efficiency for one in scaled)
        why = doubt or (
            f"an efficiency of {most:.0%} is not to be believed" if most > MAX_PLAUSIBLE_EFFICIENCY else None
        )
        if note is None:
            found.append(
                Paragraph(
                    text=f"{kind.capitalize()}: no verdict is given: {why}." if why else scaling_verdict(kind, scaled)
                )
            )
        if most > MAX_PLAUSIBLE_EFFICIENCY:
            told = f"An efficiency of {most:.0%} ({kind}): the smallest one was held up by something. Measure it again."
            found.append(Paragraph(text=told, caution=True))
        if len(scaled) < MIN_TREND_POINTS:
            few = (
                f"Only {len(scaled)} numbers of processes: {MIN_TREND_POINTS} or more are needed "
                f"to call it a trend ({kind})."
            )
            found.append(Paragraph(text=few, caution=True))
    return found


def scaling_table(kind: str, found: Sequence[ScalingResult]) -> Table:
    """The numbers of the picture."""
    head = [f"{kind}: processes", "images/s", "speed-up", "ideal", "efficiency"]
    fewest = found[0].processes
    rows = [
        [
            str(one.processes),
            format_number(one.images_per_s),
            f"{one.speed_up:.2f}",
            f"{one.processes / fewest:g}",
            f"{one.efficiency:.0%}",
        ]
        for one in found
    ]
    return Table(head=head, rows=rows)


def scaling_verdict(kind: str, found: Sequence[ScalingResult]) -> str:
    """Up to how many processes the efficiency is what centres ask for, without a gap."""
    enough = []
    for one in found:
        if one.efficiency < TARGET_EFFICIENCY:
            break
        enough.append(one.processes)
    if not enough:
        return f"{kind.capitalize()}: below {TARGET_EFFICIENCY:.0%} of the ideal from the first number of processes on."
    rest = "" if enough[-1] == found[-1].processes else ", not beyond"
    many = f"{enough[-1]} process{'es' * (enough[-1] > 1)}"
    return f"{kind.capitalize()}: {TARGET_EFFICIENCY:.0%} or more of the ideal up to {many}{rest}."
