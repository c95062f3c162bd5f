"""This module compares runs: what differs, and how throughput scales with the number of ranks.

If runs did not compute the same, it gives the reason instead of ratios.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from statistics import median
from typing import Any, Final

from entrypoint import list_some
from train.config import resume_rules
from train.config.schema import RunConfig, key_says
from train.data import registry
from train.report import plots, read
from train.report.document import Block, Paragraph, Section, Table, fold_cautions, table_of_columns
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
from train.run import record
from train.tasks import CLASSIFICATION

# What decides the arithmetic of a step and its input. Of the loader it counts whether images come
# from memory or from workers (not how many), and whether workers decode them.
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
    "fold",
    "group",
    "columns",
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
# They differ between any two runs and mean nothing.
IGNORED_KEYS: Final = ("run.name", "run.output_dir")
NO_EFFECT: Final = "no effect"
CPU_LABEL: Final = "CPU"
CPU_DEVICE_PATTERN: Final = re.compile(r"CPU, (\d+) threads? per rank")
THREADS_PER_RANK: Final = "threads per rank"
# They change the speed, and may depend on the number of ranks.
SPEED_FACTORS: Final[Mapping[str, Callable[[RecordedRun], str]]] = {
    THREADS_PER_RANK: lambda run: _cpu_threads(run) or "-",
    "micro batch": lambda run: format_value(run.fact("training", "micro_batch_size")),
    "input": lambda run: format_value(run.fact("training", "loader")),
    "data.root": lambda run: (
        "-"
        if registry.find_source(str(run.config.get("data.name"))).origin == "computed"
        else format_value(_config_value(run, "data.root"))
    ),
}
# The ranks of a node share its cores: with more ranks, each has fewer threads.
DIFFERENCE_HINTS: Final = {
    THREADS_PER_RANK: " Fewer ranks have more cores each; start all with OMP_NUM_THREADS=1 to compare like with like."
}
IDENTITY_KEYS: Final = {"commit": "git", "hosts": "hosts", "launcher": "launcher"}
WORLD_KEYS: Final = ("world_size", "num_nodes", "local_world_size")
MAX_NAMES: Final = 3  # of runs with one value, and of values in one sentence
MAX_COLUMNS: Final = 6  # of differing keys, side by side on paper


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifferences:
    """differs: name -> its value in each run. weak: the global batch grows with the ranks."""

    differs: Mapping[str, Sequence[str]]
    weak: bool

    @property
    def alike(self) -> bool:
        """Whether the speeds of the runs may be compared."""
        return not self.differs or (self.weak and set(self.differs) == {GLOBAL_BATCH})


def find_differences(runs: Sequence[RecordedRun]) -> RunDifferences:
    """Find what has several values, or an unrecorded one, among what must be the same."""
    values = {name: [describe(run) for run in runs] for name, describe in MUST_MATCH.items()}
    differs = {
        name: run_values
        for name, run_values in values.items()
        if len(set(run_values)) > 1 or NOT_RECORDED in run_values
    }
    classes = [run.confusion.classes if run.confusion else None for run in runs]
    if len({*classes} - {None}) > 1:
        differs["classes"] = [NOT_RECORDED if names is None else list_some(names) for names in classes]
    return RunDifferences(differs=differs, weak=_is_weak_scaling(runs))


def incomparable_caution(runs: Sequence[RecordedRun], differences: RunDifferences) -> Paragraph:
    """Why the speeds are not compared; the differing values are folded."""
    text = f"These runs did not compute the same ({', '.join(differences.differs)}): their speeds cannot be compared."
    more = [f"{name}: {_format_by_value(runs, values)}" for name, values in differences.differs.items()]
    return Paragraph(text=text, caution=True, more=more)


def speed_cautions(runs: Sequence[RecordedRun], differences: RunDifferences) -> list[str]:
    """Differences of comparable runs that affect the speed or the data."""
    already_reported = {*differences.differs, *([THREADS_PER_RANK] if "device" in differences.differs else [])}
    values = {
        name: [describe(run) for run in runs]
        for name, describe in SPEED_FACTORS.items()
        if name not in already_reported
    }
    differing = {name: run_values for name, run_values in values.items() if len(set(run_values)) > 1}
    return [
        f"Not the same {name}: {_format_by_value(runs, run_values)}.{DIFFERENCE_HINTS.get(name, '')}"
        for name, run_values in differing.items()
    ]


def difference_tables(runs: Sequence[RecordedRun]) -> Sequence[Block]:
    """Tables of each setting, version and derived value that differs, one row per run; a sentence without any."""
    differ = _differing([_all_facts(run) for run in runs])
    if not differ:
        return [Paragraph(text="No setting, no version, no commit, no image and no host is different.")]
    names = ("run", [run.name for run in runs])
    return table_of_columns([names, *differ.items()], left=1 + len(differ)).parts(MAX_COLUMNS)


def differing_settings(runs: Sequence[RecordedRun]) -> dict[str, list[str]]:
    """The settings that have an effect and differ: key -> its value in each run. Without where and how it ran."""
    differ = _differing([_effective_settings(run) for run in runs])
    return {key: values for key, values in differ.items() if not key_says(key, "is_environment")}


def _differing(facts: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The facts with several values: name -> its value in each run.

    A setting without effect in some runs and at its default in the others is none of them.
    """
    keys = dict.fromkeys(key for each in facts for key in each)
    columns = {key: [each.get(key, NOT_RECORDED) for each in facts] for key in keys}
    return {
        key: values
        for key, values in columns.items()
        if len({*values}) > 1 and not {*values} <= {NO_EFFECT, format_default(key)}
    }


def format_default(key: str) -> str:
    """A setting's default as `format_setting` writes it."""
    return format_setting(CONFIG_DEFAULTS.get(key))


def group_runs(runs: Sequence[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """The runs by task and data, in words."""
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        groups.setdefault(_describe_group(run), []).append(run)
    return groups


def _describe_group(run: RecordedRun) -> str:
    name = format_value(run.config.get("data.name"))
    root = SPEED_FACTORS["data.root"](run)
    where = "" if root == "-" else f" {root}"
    classes = f", {run.classes:,} classes" if run.task == CLASSIFICATION and run.classes else ""
    return f"{run.task.replace('_', ' ').capitalize()} of {name}{where}{classes}"


def _effective_settings(run: RecordedRun) -> dict[str, str]:
    return {
        key: NO_EFFECT if key in run.unused_keys else format_setting(value)
        for key, value in {**run.config, **_requested_rate(run)}.items()
        if key not in IGNORED_KEYS
    }


def _requested_rate(run: RecordedRun) -> dict[str, Any]:
    """optim.lr, if it was requested as `auto`: the recorded config has the number that the run uses."""
    return {"optim.lr": "auto"} if run.fact("training", record.AUTO_RATE) is True else {}


def _all_facts(run: RecordedRun) -> dict[str, str]:
    derived = run.facts_of("training", "training: ") | run.facts_of("versions", "versions: ")
    derived.pop(f"training: {record.AUTO_RATE}", None)  # `_effective_settings` has it
    return _effective_settings(run) | derived | run_identity(run)


def run_identity(run: RecordedRun) -> dict[str, str]:
    """Commit, image, hosts, launcher and world of the run."""
    identity = {name: format_value(run.fact(key)) for name, key in IDENTITY_KEYS.items()} | run.facts_of(
        "image", "image: "
    )
    world = run.fact("world")
    return identity | {key: format_value(world.get(key)) for key in WORLD_KEYS if isinstance(world, dict)}


def _format_by_value(runs: Sequence[RecordedRun], values: Sequence[str]) -> str:
    by_value: dict[str, list[str]] = {}
    for run, value in zip(runs, values, strict=True):
        by_value.setdefault(value, []).append(run.name)
    return list_some([f"{value} ({list_some(names, MAX_NAMES)})" for value, names in by_value.items()], MAX_NAMES)


def _is_weak_scaling(runs: Sequence[RecordedRun]) -> bool:
    """Whether the batch per rank is equal, and the numbers of ranks differ."""
    batches = [(count_or_none(run.config.get("train.global_batch_size")), num_ranks(run)) for run in runs]
    shares = {batch / ranks if batch and ranks else None for batch, ranks in batches}
    return len(shares) == 1 and None not in shares and len({ranks for _, ranks in batches}) > 1


def _describe_precision(run: RecordedRun) -> str:
    """The effective precision; `auto` depends on the device."""
    requested, effective = run.config.get("train.precision"), run.fact("training", "precision")
    precision = effective if isinstance(effective, str) else requested if requested != "auto" else None
    if not isinstance(precision, str):
        return NOT_RECORDED
    return f"{precision} with TF32" if run.config.get("train.tf32") is True and precision == "fp32" else precision


def _describe_data(run: RecordedRun) -> str:
    used_keys = [key for key in DATA_KEYS if f"data.{key}" not in run.unused_keys]
    values = {key: value for key in used_keys if (value := _config_value(run, f"data.{key}")) is not None}
    settings = [
        format_value(values.pop("name", "")),
        *(f"{key} {format_value(value)}" for key, value in values.items()),
    ]
    counts = [format_value(run.fact("training", key)) for key in ("training_images", "held_out_images", "classes")]
    if not run.config or NOT_RECORDED in counts:
        return NOT_RECORDED
    classes = "" if counts[2] == "1" else f", {counts[2]} classes"  # one output: a number
    return f"{', '.join(settings)} ({counts[0]} training and {counts[1]} validation images{classes})"


def _describe_loader(run: RecordedRun) -> str:
    loader = run.fact("training", "loader")
    if not isinstance(loader, str) or "worker" not in loader:
        return loader if isinstance(loader, str) else NOT_RECORDED
    cached = "data.cache" not in run.unused_keys and _config_value(run, "data.cache") is not None
    return "workers, from data.cache" if cached else "workers"


def _describe_model(run: RecordedRun) -> str:
    parameters = run.fact("training", "parameters")
    name = run.config.get("model.name")
    if name is None or parameters is None:
        return NOT_RECORDED
    arguments = run.config.get("model.args")
    arguments_text = f" ({format_value(arguments)})" if arguments else ""
    return f"{format_value(name)}{arguments_text}, {format_value(parameters)} parameters"


def _describe_step_options(run: RecordedRun) -> str:
    values = {key: format_setting(_config_value(run, key)) for key in STEP_KEYS}
    options = [f"{key} {value}" for key, value in values.items() if value != format_default(key)]
    return (", ".join(options) or "defaults") if run.config else NOT_RECORDED


def _config_value(run: RecordedRun, key: str) -> Any:
    """A setting, or its default if an older version did not have it."""
    return run.config.get(key, CONFIG_DEFAULTS.get(key)) if run.config else None


def _cpu_threads(run: RecordedRun) -> str:
    """Threads per rank on a CPU; empty on a GPU, and if they were not recorded."""
    match = CPU_DEVICE_PATTERN.fullmatch(format_value(run.fact("training", "device")))
    return match[1] if match else ""


X_LABEL: Final = "processes"
AXIS_HEADROOM: Final = 1.08  # above the highest point, which the edge would cut
TARGET_EFFICIENCY: Final = 0.75  # the efficiency that computing centres ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingMeasurement:
    """Images per second of all processes together. low, high: the spread of the measurements.

    speed_up: set if it was measured in alternating pairs, which a drift of the machine distorts
    less than a quotient.
    """

    processes: int
    images_per_s: float
    speed_up: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingResult:
    """speed_up: relative to the fewest processes. efficiency: speed-up divided by the ideal one."""

    processes: int
    images_per_s: float
    speed_up: float
    efficiency: float
    low: float
    high: float


def compute_scaling(points: Sequence[ScalingMeasurement]) -> list[ScalingResult]:
    """Speed-up and efficiency relative to the fewest processes; low and high become speed-ups too.

    It is the same for strong and weak scaling, since images per second are work over time.
    """
    ordered = sorted((point for point in points if point.images_per_s > 0), key=lambda point: point.processes)
    results = []
    for point in ordered:
        base, speed_up = ordered[0], point.speed_up or point.images_per_s / ordered[0].images_per_s
        result = ScalingResult(
            processes=point.processes,
            images_per_s=point.images_per_s,
            speed_up=speed_up,
            efficiency=speed_up * base.processes / point.processes,
            low=(point.images_per_s if point.low is None else point.low) / base.images_per_s,
            high=(point.images_per_s if point.high is None else point.high) / base.images_per_s,
        )
        results.append(result)
    return results


def scaling_panels(measured: Mapping[str, Sequence[ScalingMeasurement]]) -> list[Panel]:
    """Panels of speed-up and efficiency with the ideal and the 75 % line.

    Empty without measurements.
    """
    curves = {name: results for name, points in measured.items() if (results := compute_scaling(points))}
    ticks = sorted({float(point.processes) for results in curves.values() for point in results})
    if not ticks:
        return []
    speed_up = _scaling_series(curves, ticks, [tick / ticks[0] for tick in ticks], lambda result: 1.0)
    efficiency = _scaling_series(curves, ticks, [100.0 for _ in ticks], lambda at: 100 * at.efficiency / at.speed_up)
    base = f"over {ticks[0]:g} {X_LABEL}" if ticks[0] > 1 else "over one"
    return [
        Panel(title="Speed-up", x=X_LABEL, y=f"speed-up {base}", series=speed_up, ticks=ticks, log_x=2, log_y=2),
        Panel(
            title="Efficiency",
            x=X_LABEL,
            y="% of ideal",
            series=efficiency,
            ticks=ticks,
            log_x=2,
            from_zero=True,
            top=AXIS_HEADROOM * max(value for series in efficiency for value in (*series.y, *(series.high or ()))),
        ),
    ]


def _scaling_series(
    curves: Mapping[str, Sequence[ScalingResult]],
    ticks: Sequence[float],
    ideal: Sequence[float],
    factor: Callable[[ScalingResult], float],
) -> list[PlotSeries]:
    """The ideal, the limit, and the speed-up of each curve times a factor."""
    limit = [TARGET_EFFICIENCY * value for value in ideal]
    return [
        PlotSeries(name="ideal", x=ticks, y=ideal, style="ideal"),
        PlotSeries(name=f"{TARGET_EFFICIENCY:.0%} of ideal", x=ticks, y=limit, style="limit"),
        *(
            PlotSeries(
                name=name,
                x=[float(result.processes) for result in results],
                y=[result.speed_up * factor(result) for result in results],
                low=[result.low * factor(result) for result in results],
                high=[result.high * factor(result) for result in results],
                style="points",
                colour=number,
            )
            for number, (name, results) in enumerate(curves.items())
        ),
    ]


MIN_TREND_POINTS: Final = 3  # numbers of processes that a trend needs
MAX_PLAUSIBLE_EFFICIENCY: Final = 1.1  # a higher one means that the base was measured too slow
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


def scaling_section(
    runs: Sequence[RecordedRun], differences: RunDifferences, *, anyway: bool, mark: str = ""
) -> Section | None:
    """Scaling over the runs' ranks; None if all had the same number.

    anyway: also for runs that differ. mark: ends the pictures' names.
    """
    if len({read.num_ranks(run) for run in runs}) < 2:
        return None
    measured = scaling_measurements(runs)
    excluded = [
        f"{run.name} is left out: {'no log point' if speed is None else 'first steps only'}."
        for run in runs
        if (speed := read.measured_throughput(run)) is None or speed.warm_up
    ]
    cautions = fold_cautions(excluded, f"{len(excluded)} runs are left out.")
    if len(measured) < 2:
        too_few = Paragraph(text="Speed-up needs the speed of runs on two numbers of ranks or more.")
        return Section(title=SCALING_TITLE, blocks=[too_few, *cautions])
    if not differences.alike and not anyway:
        reason = "Speed-up and efficiency are left out for that reason. The option --compare-anyway draws them."
        return Section(title=SCALING_TITLE, blocks=[Paragraph(text=reason)])
    note = None if differences.alike else f"Not comparable: not the same {', '.join(differences.differs)}"
    scaling = "unlike runs" if note else "weak scaling" if GLOBAL_BATCH in differences.differs else "strong scaling"
    repeated = len(measured) < len(runs) - len(excluded)
    introduction = [
        Paragraph(
            text=SCALING_KIND_TEXTS[scaling]
            + THROUGHPUT_TEXT
            + (REPEATED_RUNS_TEXT if repeated else QUARTILE_BARS_TEXT)
        )
    ] + ([Paragraph(text=f"{note}.", caution=True)] if note else [])
    doubt = f"not the same {THREADS_PER_RANK}" if len({_cpu_threads(run) for run in runs}) > 1 else None
    blocks = scaling_blocks({scaling: measured}, name=f"scaling{mark}", note=note, doubt=doubt)
    return Section(title=SCALING_TITLE, blocks=[*introduction, *cautions, *blocks])


def scaling_measurements(runs: Sequence[RecordedRun]) -> list[ScalingMeasurement]:
    """One measurement per number of ranks, without first steps; the median of several runs."""
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
    """Pictures and tables of the measurements, by strong and weak scaling.

    doubt: why no verdict is given.
    """
    panels = scaling_panels(measured)
    if not panels:
        return []
    caption = f"{' and '.join(measured)} against the ideal and {TARGET_EFFICIENCY:.0%} of it"
    blocks: list[Block] = [*plots.render_panels(name, panels, of=caption, note=note)]
    for scaling, points in measured.items():
        if not (results := compute_scaling(points)):
            blocks.append(Paragraph(text=f"{scaling.capitalize()}: no throughput above 0.", caution=True))
            continue
        blocks.append(scaling_table(scaling, results))
        max_efficiency = max(result.efficiency for result in results)
        reason = doubt or (
            f"an efficiency of {max_efficiency:.0%} is not plausible"
            if max_efficiency > MAX_PLAUSIBLE_EFFICIENCY
            else None
        )
        if note is None:
            blocks.append(
                Paragraph(
                    text=f"{scaling.capitalize()}: no verdict is given: {reason}."
                    if reason
                    else scaling_verdict(scaling, results)
                )
            )
        if max_efficiency > MAX_PLAUSIBLE_EFFICIENCY:
            text = (
                f"An efficiency of {max_efficiency:.0%} ({scaling}): something slowed down the run with "
                "the fewest processes. Measure it again."
            )
            blocks.append(Paragraph(text=text, caution=True))
        if len(results) < MIN_TREND_POINTS:
            text = (
                f"Only {len(results)} numbers of processes: {MIN_TREND_POINTS} or more are needed "
                f"to call it a trend ({scaling})."
            )
            blocks.append(Paragraph(text=text, caution=True))
    return blocks


def scaling_table(scaling: str, results: Sequence[ScalingResult]) -> Table:
    """The numbers of the picture as a table."""
    rows = [
        [
            str(result.processes),
            format_number(result.images_per_s),
            f"{result.speed_up:.2f}",
            f"{result.processes / results[0].processes:g}",
            f"{result.efficiency:.0%}",
        ]
        for result in results
    ]
    return Table(head=[f"{scaling}: processes", "images/s", "speed-up", "ideal", "efficiency"], rows=rows)


def scaling_verdict(scaling: str, results: Sequence[ScalingResult]) -> str:
    """Up to how many processes the efficiency is at least TARGET_EFFICIENCY, without a gap."""
    enough = list(takewhile(lambda result: result.efficiency >= TARGET_EFFICIENCY, results))
    if not enough:
        return (
            f"{scaling.capitalize()}: below {TARGET_EFFICIENCY:.0%} of the ideal from the first number of processes on."
        )
    suffix = "" if len(enough) == len(results) else ", not beyond"
    processes = enough[-1].processes
    count = f"{processes} process{'es' * (processes > 1)}"
    return f"{scaling.capitalize()}: {TARGET_EFFICIENCY:.0%} or more of the ideal up to {count}{suffix}."
