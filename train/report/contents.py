"""What was read of runs and benches becomes the document, in the order in which people ask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median

from train.report import benches, comparing, confusion, curves, figures, gpus, scaling
from train.report.benches import Bench
from train.report.comparing import Likeness
from train.report.document import Block, Document, Facts, Section, Table, Words
from train.report.figures import NOT, SCORES
from train.report.reading import Run, number

TRAINED_NOTHING = "none: finished before"


def document(
    runs: Sequence[Run], found: Sequence[Bench], *, anyway: bool, made: str, missing: Sequence[str] = ()
) -> Document:
    """One run in full, or several beside each other, and what was benched. missing: what was asked for beside them."""
    absent = [Words(text=f"{line}.", caution=True) for line in missing]  # it begins with a path
    sections = [Section(title="Left out", blocks=absent)] if absent else []
    if len(runs) == 1:
        sections += _one(runs[0])
    elif runs:
        sections += _several(runs, comparing.likeness(runs), anyway=anyway)
    sections += [benches.section(bench, at) for at, bench in enumerate(found, 1)]
    return Document(title=_title(runs, found), sections=sections, made=made)


def _title(runs: Sequence[Run], found: Sequence[Bench]) -> str:
    if len(runs) == 1:
        return f"Run {runs[0].name}"
    return f"{len(runs)} runs beside each other" if runs else f"Bench {', '.join(bench.name for bench in found)}"


def _one(run: Run) -> list[Section]:
    matrix = confusion.section(run)
    drawn = [summary(run), evaluations(run), curves.section([run]), gpus.section(run), matrix]
    parts = [*drawn, starts(run), settings(run)]
    return [part for part in parts if part is not None]


def _several(runs: Sequence[Run], found: Likeness, *, anyway: bool) -> list[Section]:
    parts = [overview(runs, found), scaling.section(runs, found, anyway=anyway), curves.section(runs)]
    parts += [gpus.compared(runs), confusion.compared(runs)]
    nothing = Words(text="No setting, no version, no commit, no image and no host is different.")
    parts.append(Section(title="What differs", blocks=comparing.tables(by_score(runs)) or [nothing]))
    return [part for part in parts if part is not None]


def summary(run: Run) -> Section:
    """The figures that a reader looks for first."""
    found = figures.best(run)
    called = figures.metric(run)
    large = {
        f"best {_name(called)}": figures.share(found[0] if found else None, called),
        "speed": figures.rate(figures.speed(run)),
        "training": figures.duration(figures.training_seconds(run)),
        "ran on": figures.place(run),
    }
    blocks: list[Block] = [Words(text=_sentence(figures.status(run))), Facts(rows=large, large=True)]
    blocks += [Words(text=f"{_sentence(missing)}", caution=True) for missing in run.missing]
    blocks.append(Facts(rows=_details(run)))
    return Section(title="In short", blocks=blocks)


def evaluations(run: Run) -> Section | None:
    """The scores on the held-out images, of the best evaluation by the run's own metric and of the last one."""
    steps, best = run.column("eval", figures.metric(run))[0], figures.best(run)
    if not steps:
        return None
    columns = {key: dict(zip(*run.column("eval", key), strict=True)) for key in figures.scores(run)}
    known = {key: values for key, values in columns.items() if any(map(math.isfinite, values.values()))}
    named = {f"best {_name(figures.metric(run))}": best[1] if best else None, "last": max(steps)}
    rows = [
        [name, f"{step:,.0f}", *(figures.share(values.get(step), key) for key, values in known.items())]
        for name, step in named.items()
        if step is not None
    ]
    head = ["evaluation", "step", *(SCORES[key] for key in known)]
    return Section(title="Evaluations", blocks=[Table(head=head, rows=rows)])


def overview(runs: Sequence[Run], found: Likeness) -> Section:
    """One line for each run, and whether their speeds may be compared."""
    blocks: list[Block] = []
    if found.differs and not found.alike:
        blocks.append(Words(text=comparing.caution(runs, found), caution=True))
    elif found.weak and found.differs:
        told = "The global batch grows with the ranks: these runs are compared as weak scaling, by images per second."
        blocks.append(Words(text=told))
    else:
        *most, last = comparing.SAME
        blocks.append(Words(text=f"The same {', '.join(most)} and {last} in all runs."))
    blocks += [Words(text=line, caution=True) for line in comparing.beside(runs, found)]
    blocks += [Words(text=f"{run.name}: {missing}.", caution=True) for run in runs for missing in run.missing]
    return Section(title="In short", blocks=[*blocks, _lines(by_score(runs))])


def by_score(runs: Sequence[Run]) -> list[Run]:
    """The best first; as they were named where they were judged by other metrics, or have no score."""
    called = {figures.metric(run) for run in runs}
    sign = 1 if called == {"loss"} else -1
    scores = {run.name: sign * found[0] for run in runs if (found := figures.best(run)) and len(called) == 1}
    return sorted(runs, key=lambda run: scores.get(run.name, math.inf))


def _lines(runs: Sequence[Run]) -> Table:
    head = ["run", "best by its metric", "images/s", "training", "global batch", "precision", "ran on", "how it ended"]
    rows = []
    for run in runs:
        best, speed = figures.best(run), figures.speed(run)
        rows.append(
            [
                run.name,
                f"{figures.metric(run)} {figures.share(best[0] if best else None, figures.metric(run))}",
                figures.rate(speed).removesuffix(" images/s") if speed and not speed.warm_up else figures.rate(speed),
                figures.duration(figures.training_seconds(run)),
                comparing.SAME[comparing.BATCH](run),
                comparing.SAME["precision"](run),
                figures.place(run),
                figures.status(run),
            ]
        )
    return Table(head=head, rows=rows, words=(6, 7))


def _details(run: Run) -> dict[str, str]:
    """What ran, where, when."""
    found, at = figures.best(run), figures.times(run)
    batch = [figures.told(run.fact("training", key)) for key in ("micro_batch_size", "accumulation")]
    # The world stands above, in words.
    known = {key: value for key, value in comparing.identity(run).items() if key not in comparing.WORLD}
    details = {
        "model": comparing.SAME["model"](run),
        "data": comparing.SAME["data"](run),
        "images read": _reading(figures.told(run.fact("training", "loader"))),
        "device": figures.told(run.fact("training", "device")),
        "precision": comparing.SAME["precision"](run),
        "global batch": f"{comparing.SAME[comparing.BATCH](run)} (micro batch {batch[0]}, accumulation {batch[1]})",
        "best step": f"{found[1]:,.0f}" if found else NOT,
        "checkpoints": _checkpoints(run),
        "recorded": f"{when(at[0])} to {when(at[-1])}" if at else NOT,
        **known,
        "folder": str(run.folder.absolute()),
    }
    return details | _accidents(run)


def _checkpoints(run: Run) -> str:
    stood = [
        value for event in run.events.get("checkpoint", ()) if (value := number(event.get("stalled_seconds"))) >= 0
    ]
    if not stood:
        return "none recorded"
    waited = f"{median(stood) * 1000:,.0f} ms for one (median), {max(stood) * 1000:,.0f} ms at most"
    return f"{len(stood)} written, {run.kept} kept; training waited {waited}"


def _reading(loader: str) -> str:
    """From memory, by 4 workers."""
    return f"by {loader}" if "worker" in loader else f"from {loader}" if loader.startswith("memory") else loader


def _accidents(run: Run) -> dict[str, str]:
    """Jumps of the loss, and what was done about them."""
    steps = {kind: [f"{step:,.0f}" for step in run.column(kind, "loss")[0]] for kind in ("spike", "rollback")}
    return {kind: f"at step {', '.join(at)}" for kind, at in steps.items() if at}


def starts(run: Run) -> Section | None:
    """Each start of a run that had several."""
    if len(run.starts) < 2:
        return None
    head = ["began", "from step", "ranks", "hosts", "launcher", "ended"]
    shown = [{**start, "world_size": TRAINED_NOTHING} if start.get("idle") else start for start in run.starts]
    rows = [[_plain(start, key) for key in ("at", "step", "world_size", "hosts", "launcher")] for start in shown]
    ended = [start.get("ended") for start in run.starts]
    told = [f"{end.get('code')}, {end.get('cause')}" if isinstance(end, dict) else "not recorded" for end in ended]
    lines = [[*row, end] for row, end in zip(rows, told, strict=True)]
    return Section(title="Starts", blocks=[Table(head=head, rows=lines, left=6)])


def settings(run: Run) -> Section:
    """The configuration, without what did nothing in it, and the versions."""
    rows = {key: figures.setting(value) for key, value in run.config.items() if key not in run.idle}
    idle = ", ".join(key for key in run.config if key in run.idle)
    versions = run.fact("versions")
    known = versions.items() if isinstance(versions, dict) else ()
    rows |= {f"version of {name}": figures.told(value) for name, value in known}
    left_out = [Words(text=f"Left out, for they had no effect here: {idle}.")] if idle else []
    return Section(title="Settings", blocks=[Facts(rows=rows) if rows else Words(text="Not recorded."), *left_out])


def when(seconds: float) -> str:
    """In UTC, to the second."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"


def _plain(start: object, key: str) -> str:
    value = start.get(key) if isinstance(start, dict) else None
    return figures.told(value)


def _name(metric: str) -> str:
    return SCORES.get(metric, metric)


def _sentence(text: str) -> str:
    """A name of a file stays as it is."""
    return f"{text}." if "." in text.split()[0] else f"{text[:1].upper()}{text[1:]}."
