"""This module builds a report from runs and benchmarks, and writes HTML, Markdown and PNG files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from statistics import fmean, median, stdev
from typing import Final

from entrypoint import ExitCode, Failure, file_writer, list_some
from train import files as file_io
from train.config import schema
from train.evaluation.mistakes import LabelScore
from train.metrics import NOT_MEASURED, Metric
from train.report import compare, plots, read, saved_evaluation
from train.report.compare import RunDifferences
from train.report.document import (
    GENERATOR_TAG,
    Block,
    DescriptionList,
    Paragraph,
    Picture,
    Report,
    Section,
    Table,
    fold_cautions,
    render_html,
    render_markdown,
    table_of_columns,
)
from train.report.read import ConfusionMatrix, RecordedRun, finite_or_nan
from train.report.saved_evaluation import SavedEvaluation
from train.run.record import EVALUATION_FILE

HTML_FILE, MARKDOWN_FILE = "report.html", "report.md"
OUTPUT_FIX: Final = "write `--output DIR`, a folder that you may write"
PICTURE_PATTERN: Final = re.compile(
    r"(curves|scaling|gpus|confusion|calibration|numbers|residuals|samples|bench-[0-9]+)(-[a-z0-9-]+)?\.png"
)  # names that we give


def write_report(document: Report, folder: Path, *, own: bool) -> list[Path]:
    """Write each file atomically; return their paths, the HTML page first.

    own: `folder` is the default folder, which may not be a link or hold other files, because the
    user did not choose it. An earlier report and its pictures are replaced, other files never.

    Raises:
        Failure: SECURITY for such a link; OUTPUT or IO if the folder cannot be written or holds
            other files.
    """
    if own and folder.is_symlink():
        raise Failure(
            f"{folder} is a symbolic link: the report would be written outside the run's folder",
            found=f"{folder} -> {os.readlink(folder)}",
            fix="remove the link, or write `--output DIR`",
            code=ExitCode.SECURITY,
        )
    files = {HTML_FILE: render_html(document).encode(), MARKDOWN_FILE: render_markdown(document).encode()}
    files |= {f"{picture.name}.png": picture.png for picture in document.pictures()}
    try:
        old = _earlier_pictures(folder, {*files}, own=own)
        file_io.prepare_folder(folder, need=sum(map(len, files.values())))
        for name, data in files.items():
            file_io.write_atomic(folder / name, data)
        for name in old - {*files}:
            file_io.remove(folder / name)
    except Failure as failure:
        if failure.code == ExitCode.OUTPUT and "--output" not in (failure.fix or ""):
            failure.fix = OUTPUT_FIX
        raise
    return [folder / name for name in files]


def _earlier_pictures(folder: Path, names: set[str], *, own: bool) -> set[str]:
    """The pictures of an earlier report in `folder`; refuse to overwrite other files."""
    try:
        existing = {name for name in os.listdir(folder) if not name.startswith(file_writer.TEMPORARY_PREFIX)}
    except OSError:  # it does not exist, or `prepare_folder` raises the reason
        return set()
    if _is_report_page(folder / HTML_FILE):
        return {name for name in existing if PICTURE_PATTERN.fullmatch(name)}
    if others := existing if own else existing & names:
        raise Failure(
            f"{folder} holds files that are no report",
            found=list_some(sorted(others)),
            fix="write `--output DIR`, an empty folder",
            code=ExitCode.OUTPUT,
        )
    return set()


def _is_report_page(page: Path) -> bool:
    with suppress(OSError):
        if S_ISREG(page.lstat().st_mode):
            with page.open("rb") as file:
                return GENERATOR_TAG.encode() in file.read(4096)
    return False


START_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")  # as run.json has it


def build_report(
    runs: Sequence[RecordedRun],
    benches: Sequence[tuple[str, Section]] = (),
    *,
    anyway: bool,
    byline: str,
    missing: Sequence[str] = (),
) -> Report:
    """Build the report of one run, or of several compared, and of benches.

    missing: arguments that were left out.
    """
    absent = [f"{line}." for line in missing]  # each begins with a path
    left_out = fold_cautions(absent, f"{len(absent)} arguments are left out.")
    sections = [Section(title="Left out", blocks=left_out) if absent else None]
    if len(runs) == 1:
        title, (run,) = f"Run {runs[0].name}", runs
        sections += [
            summary_section(run),
            evaluations_section(run),
            plots.curves_section(runs),
            plots.gpu_section(run),
            plots.confusion_section(run),
            mistakes_section(run),
            plots.samples_section(run),
            starts_section(run),
            settings_section(run),
        ]
    elif runs:
        title, groups = f"{len(runs)} runs compared", compare.group_runs(runs)
        for number, (name, group) in enumerate(groups.items(), 1):
            mark, prefix = (f"-{number}", f"{name}: ") if len(groups) > 1 else ("", "")
            for section in _comparison_sections(sort_by_metric(group), anyway=anyway, mark=mark):
                sections.append(Section(title=f"{prefix}{section.title}", blocks=section.blocks))
    else:
        title = f"Bench {', '.join(name for name, _ in benches)}"
    sections += [section for _, section in benches]
    return Report(title=title, sections=[section for section in sections if section is not None], byline=byline)


def _comparison_sections(runs: Sequence[RecordedRun], *, anyway: bool, mark: str) -> list[Section]:
    """The sections about runs of one task and data, the best run first. mark: ends the names of their pictures."""
    differences = compare.find_differences(runs)
    sections = [
        overview_section(runs, differences),
        folds_section(runs, mark=mark),
        compare.scaling_section(runs, differences, anyway=anyway, mark=mark),
        plots.curves_section(runs, mark=mark),
        plots.gpu_comparison_section(runs),
        plots.confusion_comparison_section(runs, mark=mark),
        Section(title="What differs", blocks=compare.difference_tables(runs)) if len(runs) > 1 else None,
    ]
    return [section for section in sections if section is not None]


def summary_section(run: RecordedRun) -> Section:
    """The key figures of the run."""
    best = read.best_evaluation(run)
    metric, test = read.selection_metric(run), read.final_score(run)
    key_figures = {
        f"best {read.metric_label(metric)}": metric.format(best[0] if best else None),
        **({} if test is None else {f"test {metric.label}": metric.format(test.values.get(metric.name))}),
        "speed": read.format_throughput(read.measured_throughput(run)),
        "training": read.format_duration(read.training_seconds(run)),
        "ran on": read.describe_world(run),
    }
    blocks: list[Block] = [
        Paragraph(text=_as_sentence(read.describe_status(run))),
        DescriptionList(rows=key_figures, large=True),
    ]
    blocks += [Paragraph(text=_as_sentence(missing), caution=True) for missing in run.missing]
    blocks.append(DescriptionList(rows=_run_details(run)))
    return Section(title="In short", blocks=blocks)


TEST_TEXT: Final = (
    "The test split chose nothing: neither a checkpoint nor the end of the run. The best validation score is too high "
    "for new images."
)
INTERVAL_TEXT: Final = (
    "The 95 % interval of {label} is Wilson's, for images that are independent of each other: it shows how far the "
    "score of other images of the same source may be."
)


def evaluations_section(run: RecordedRun) -> Section | None:
    """Metrics of the best evaluation (by the run's metric), of the last one, and of the test split."""
    selected, best, test = read.selection_metric(run), read.best_evaluation(run), read.final_score(run)
    steps, _ = run.column("eval", selected.name)
    if not steps and test is None:
        return None
    metrics, samples = read.meaningful_metrics(run.task, run.classes), read.evaluated_images(run)
    curves = {metric.name: dict(zip(*run.column("eval", metric.name), strict=True)) for metric in metrics}
    named = {f"best {read.metric_label(selected)}": best[1] if best else None, "last": max(steps, default=None)}
    rows: list[tuple[str, float | None, int | None, Mapping[str, float]]] = [
        (name, step, samples.get(step), {key: curve[step] for key, curve in curves.items()})
        for name, step in named.items()
        if step is not None
    ]
    if test is not None:
        rows.append(("test split", test.weights_step, test.samples, test.values))
    intervals = [selected.format_interval(values.get(selected.name), images) for _, _, images, values in rows]
    columns = [
        ("evaluation", [name for name, *_ in rows]),
        ("step", ["" if step is None else f"{step:,.0f}" for _, step, _, _ in rows]),
        ("images", [f"{images:,}" if images else "" for _, _, images, _ in rows]),
        *(
            (metric.label, [metric.format(values.get(metric.name)) for *_, values in rows])
            for metric in metrics
            if any(math.isfinite(values.get(metric.name, math.nan)) for *_, values in rows)
        ),
        (f"95 % of {selected.label}", intervals),
    ]
    texts = [INTERVAL_TEXT.format(label=selected.label)] if any(intervals) else []
    texts += [TEST_TEXT] if test is not None else []
    return Section(
        title="Evaluations",
        blocks=[table_of_columns(_drop_empty(columns)), *(Paragraph(text=text) for text in texts)],
    )


def _drop_empty(columns: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, list[str]]]:
    """The columns in which there is anything; - in their empty cells."""
    return [(head, [cell or "-" for cell in cells]) for head, cells in columns if any(cells)]


def overview_section(runs: Sequence[RecordedRun], differences: RunDifferences) -> Section:
    """One row per run, and whether their speeds may be compared."""
    *others, last = compare.MUST_MATCH
    blocks: list[Block] = []
    if differences.differs and not differences.alike:
        blocks.append(compare.incomparable_caution(runs, differences))
    elif differences.weak and differences.differs:
        blocks.append(
            Paragraph(
                text="The global batch grows with the ranks: these runs are compared as weak scaling, by images per "
                "second."
            )
        )
    elif len(runs) > 1:
        blocks.append(Paragraph(text=f"The same {', '.join(others)} and {last} in all runs."))
    speed_cautions = compare.speed_cautions(runs, differences)
    blocks += fold_cautions(speed_cautions, f"{len(speed_cautions)} other differences may change the speed.")
    lacks = [f"{run.name}: {missing}." for run in runs for missing in run.missing]
    blocks += fold_cautions(lacks, f"{len(lacks)} files are missing or cannot be read.")
    blocks += _runs_table(runs)
    if repeats := _find_repeats(runs, SEED_KEY):
        blocks += [Paragraph(text=REPEATED_TEXT), _repeats_table(repeats)]
    return Section(title="In short", blocks=blocks)


SEED_KEY, FOLD_KEY = "run.seed", "data.fold"
REPEATED_TEXT: Final = (
    "Runs that differ in run.seed only. The standard deviation shows how much another training differs; the 95 % "
    "interval above, how much other images differ."
)
FOLDS_TEXT: Final = (
    "Runs that differ in data.fold only. Each image validates in one fold, so that the confusion matrices add up to "
    "one over all images. The standard deviation shows how much the folds differ."
)


def sort_by_metric(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Runs ordered by their metric, best first; those of one metric stay together."""
    metrics = [*dict.fromkeys(read.selection_metric(run).name for run in runs)]

    def rank(run: RecordedRun) -> tuple[int, float]:
        metric, best = read.selection_metric(run), read.best_evaluation(run)
        return metrics.index(metric.name), metric.rank_key(best[0]) if best else math.inf

    return sorted(runs, key=rank)


MAX_SETTING_COLUMNS: Final = 3  # of more differing settings, one column holds all


def _setting_columns(runs: Sequence[RecordedRun]) -> list[tuple[str, list[str]]]:
    """(head, cell of each run) of the settings that differ, to stand beside the score."""
    differing = compare.differing_settings(runs)
    if len(differing) <= MAX_SETTING_COLUMNS:
        return [
            (key, ["-" if value == compare.NO_EFFECT else value for value in values])
            for key, values in differing.items()
        ]
    by_run = zip(*differing.values(), strict=True)
    cells = [_describe_settings(dict(zip(differing, values, strict=True))) for values in by_run]
    return [("settings that differ", [cell or "defaults" for cell in cells])]


def _score_columns(runs: Sequence[RecordedRun]) -> list[tuple[str, list[str]]]:
    """(head, cell of each run): the best score with its 95 % interval, and that of the test split."""
    rows, has_test = [], any(read.final_score(run) is not None for run in runs)
    for run in runs:
        metric, evaluation, test = read.selection_metric(run), read.best_evaluation(run), read.final_score(run)
        value, step = evaluation or (None, math.nan)
        best = f"{read.metric_label(metric)} {metric.format(value)}"
        row = [best, metric.format_interval(value, read.evaluated_images(run).get(step))]
        value, images = (None, None) if test is None else (test.values.get(metric.name), test.samples)
        rows.append([*row, metric.format(value) if has_test else "", metric.format_interval(value, images)])
    heads = ("best by its metric", "its 95 % interval", "on the test split", "its 95 % interval")
    return _drop_empty([*zip(heads, zip(*rows, strict=True), strict=True)])


def _runs_table(runs: Sequence[RecordedRun]) -> list[Block]:
    """A row for each run. What is the same in all stands in a sentence."""
    settings = _setting_columns(runs)
    speeds = [read.format_throughput(read.measured_throughput(run)) for run in runs]
    facts = [
        *((name, [compare.MUST_MATCH[name](run) for run in runs]) for name in (compare.GLOBAL_BATCH, "precision")),
        ("ran on", [read.describe_world(run) for run in runs]),
        ("how it ended", [read.describe_status(run) for run in runs]),
    ]
    same = [f"{name}: {values[0]}" for name, values in facts if len({*values}) == 1 < len(runs)]
    differing = [(name, values) for name, values in facts if len({*values}) > 1 or len(runs) == 1]
    columns = [
        ("run", [run.name for run in runs]),
        *settings,
        *_score_columns(runs),
        ("images/s", [speed.removesuffix(" images/s") for speed in speeds]),
        ("training", [read.format_duration(read.training_seconds(run)) for run in runs]),
        *differing,
    ]
    words = [number for number, (name, _) in enumerate(columns) if name in ("ran on", "how it ended")]
    table = table_of_columns(columns, left=1 + len(settings), words=words)
    return [*([Paragraph(text=f"In all runs {'; '.join(same)}.")] if same else []), table]


Repeats = Sequence[tuple[str, Sequence[RecordedRun]]]  # the settings in words, and their runs


def _find_repeats(runs: Sequence[RecordedRun], key: str) -> Repeats:
    """The runs that differ in this setting only, where there are several."""
    differing = compare.differing_settings(runs)
    if differing.pop(key, None) is None:
        return []
    groups: dict[tuple[str, ...], list[RecordedRun]] = {}
    for number, run in enumerate(runs):
        values = [values[number] for values in differing.values()]
        groups.setdefault((read.selection_metric(run).name, *values), []).append(run)
    return [
        (_describe_settings(dict(zip(differing, values, strict=True))) or "defaults", group)
        for (_, *values), group in groups.items()
        if len(group) > 1
    ]


def _describe_settings(settings: Mapping[str, str]) -> str:
    """The settings that have an effect and are not at their defaults."""
    return ", ".join(
        f"{key}={value}"
        for key, value in settings.items()
        if value not in (read.NOT_RECORDED, compare.NO_EFFECT, compare.format_default(key))
    )


def _repeats_table(repeats: Repeats) -> Table:
    """The mean and the standard deviation of the runs of each row."""
    has_test = any(read.final_score(run) is not None for _, group in repeats for run in group)
    rows = []
    for settings_text, group in repeats:
        metric = read.selection_metric(group[0])
        best = [score[0] for run in group if (score := read.best_evaluation(run)) is not None]
        tests = [test.values.get(metric.name, math.nan) for run in group if (test := read.final_score(run))]
        row = [settings_text, f"{len(group)}", f"{read.metric_label(metric)} {_mean_and_deviation(metric, best)}"]
        rows.append([*row, *([_mean_and_deviation(metric, tests)] if has_test else [])])
    head = ["settings", "runs", "best: mean ± standard deviation", *(["on the test split"] if has_test else [])]
    return Table(head=head, rows=rows)


def folds_section(runs: Sequence[RecordedRun], *, mark: str = "") -> Section | None:
    """Means over runs that differ in data.fold only, and their confusion matrices added up; None without such runs."""
    repeats, others = [], list[RecordedRun]()
    for settings_text, group in _find_repeats(runs, FOLD_KEY):
        folds = [run for run in group if run.config.get(FOLD_KEY) is not None]
        if len(folds) > 1:
            repeats.append((settings_text, folds))
            others += [run for run in group if run.config.get(FOLD_KEY) is None]
    if not repeats:
        return None
    blocks: list[Block] = [Paragraph(text=FOLDS_TEXT), _repeats_table(repeats)]
    if others:
        names = list_some([run.name for run in others])
        blocks.append(Paragraph(text=f"Left out (the same settings, but data.fold is null): {names}."))
    for number, (settings_text, group) in enumerate(repeats, 1):
        blocks += _fold_blocks(settings_text, group, name=f"confusion-folds{mark}-{number}")
    return Section(title="Folds", blocks=blocks)


def _fold_blocks(settings_text: str, group: Sequence[RecordedRun], *, name: str) -> list[Block]:
    """The confusion matrix over all images of the folds, and what it lacks."""
    folds = [schema.parse_fold(str(run.config.get(FOLD_KEY))) for run in group]
    matrices = [matrix for run in group if (matrix := plots.best_confusion(run) or run.confusion) is not None]
    if not matrices:
        return []  # numbers have none, nor have several labels
    recorded = sorted({fold for fold in folds if fold is not None})
    parts, names = {parts for _, parts in recorded}, {matrix.classes for matrix in matrices}
    if len(matrices) < len(group) or len(recorded) < len(group) or len(parts) > 1 or len(names) > 1:
        reason = "a fold is there twice, or lacks its matrix, or has other classes or another number of folds"
        return [Paragraph(text=f"{settings_text}: the confusion matrices do not add up: {reason}.", caution=True)]
    rows = zip(*(matrix.matrix for matrix in matrices), strict=True)
    counts = tuple(tuple(map(sum, zip(*each, strict=True))) for each in rows)
    total = ConfusionMatrix(step=None, classes=matrices[0].classes, matrix=counts)
    images, correct = sum(map(sum, counts)), sum(row[index] for index, row in enumerate(counts))
    share = f"{plots.format_ratio(correct, images)} of the {images:,} validation images of all of them"
    lacks = f"{len(recorded)} of {max(parts)} folds are here" if len(recorded) < max(parts) else ""
    text = Paragraph(text=f"{settings_text}: {lacks or 'all folds'}; {share} are right.", caution=bool(lacks))
    return [text, *plots.confusion_pictures(total, name, "all folds"), plots.class_table(total)]


def _mean_and_deviation(metric: Metric, values: Sequence[float]) -> str:
    """87.12% ± 0.21%; - for fewer than two numbers."""
    finite = [value for value in values if math.isfinite(value)]
    return f"{metric.format(fmean(finite))} ± {metric.format(stdev(finite))}" if len(finite) > 1 else "-"


def _run_details(run: RecordedRun) -> dict[str, str]:
    """Model, data, device, checkpoints, time and identity of the run."""
    best, times = read.best_evaluation(run), run.metrics.recorded
    loader = read.format_value(run.fact("training", "loader"))
    batch = [read.format_value(run.fact("training", key)) for key in ("micro_batch_size", "accumulation")]
    # The key figures show the world already.
    identity = {key: value for key, value in compare.run_identity(run).items() if key not in compare.WORLD_KEYS}
    details = {
        "model": compare.MUST_MATCH["model"](run),
        "data": compare.MUST_MATCH["data"](run),
        # from memory, or by 4 workers
        "images read": f"by {loader}" if "worker" in loader else "from " * loader.startswith("memory") + loader,
        "device": read.format_value(run.fact("training", "device")),
        "precision": compare.MUST_MATCH["precision"](run),
        "global batch": f"{compare.MUST_MATCH[compare.GLOBAL_BATCH](run)} "
        f"(micro batch {batch[0]}, accumulation {batch[1]})",
        "best step": f"{best[1]:,.0f}" if best else NOT_MEASURED,
        "checkpoints": _describe_checkpoints(run),
        "recorded": f"{format_time(times[0])} to {format_time(times[1])}" if times else NOT_MEASURED,
        **identity,
        "folder": str(run.folder.absolute()),
    }
    accidents = {event: run.column(event, "loss")[0] for event in ("spike", "rollback")}
    steps = {event: ", ".join(f"{step:,.0f}" for step in steps) for event, steps in accidents.items() if steps}
    return details | {event: f"at step {text}" for event, text in steps.items()}


def _describe_checkpoints(run: RecordedRun) -> str:
    stalls = [
        value
        for event in run.metrics.events.get("checkpoint", ())
        if (value := finite_or_nan(event.get("stalled_seconds"))) >= 0
    ]
    if not stalls:
        return "none recorded"
    waits = f"{median(stalls) * 1000:,.0f} ms for one (median), {max(stalls) * 1000:,.0f} ms at most"
    return f"{len(stalls)} written, {run.num_checkpoints} kept; training waited {waits}"


ECE_TEXT: Final = (
    "A line is the accuracy of the images with that confidence, and the gap its distance from their mean confidence. "
    "Where the gap lies above the line, the model is too sure. The expected calibration error (ECE) is the mean gap "
    "over all images, in 15 bins of equal width (Guo et al., On Calibration of Modern Neural Networks, 2017)."
)
HEAT_TEXT: Final = (
    "Below each image, the same under a heat map (Grad-CAM): what speaks for the predicted class, for the label in "
    "question, or for a high number. Bright is strong evidence, no colour is none; each map has its own scale."
)
NUMBERS_TEXT: Final = (
    "On the dotted lines the prediction is right. A residual above its line is predicted too high. Residuals that fall "
    "from left to right are predictions too near to the mean."
)


def mistakes_section(run: RecordedRun) -> Section | None:
    """Diagrams and galleries of the evaluation that `train eval RUN --report` kept; None without one."""
    saved = saved_evaluation.read(run.folder / EVALUATION_FILE)
    if saved is None:
        return None
    blocks: list[Block] = [*_evaluation_cautions(run, saved), DescriptionList(rows=_evaluation_facts(saved))]
    matrix = _class_matrix(run, saved)
    if matrix is not None:
        blocks.append(plots.class_table(matrix))
    if saved.labels:
        blocks.append(label_table(saved.labels))
    if saved.calibration is not None and saved.samples:
        png = plots.draw_calibration(saved.calibration)
        alt = f"Reliability diagram, expected calibration error {saved.calibration.error:.3f}"
        blocks += [Picture(name="calibration", png=png, alt=alt), Paragraph(text=ECE_TEXT)]
    if saved.numbers is not None and saved.numbers.true:
        numbers, drawn = saved.numbers, len(saved.numbers.true)
        over, count = f"{numbers.name} over the true one", f" {drawn:,} of {numbers.images:,} images are drawn."
        blocks += [
            Picture(name="numbers", png=plots.draw_numbers(numbers, residuals=False), alt=f"Predicted {over}"),
            Picture(name="residuals", png=plots.draw_numbers(numbers, residuals=True), alt=f"Errors of {over}"),
            Paragraph(text=NUMBERS_TEXT + ("" if drawn == numbers.images else count)),
        ]
    if any(image.heat for gallery in saved.galleries for image in gallery.images):
        blocks.append(Paragraph(text=HEAT_TEXT))
    for gallery in saved.galleries:
        if gallery.images:
            blocks += [Paragraph(text=gallery.title), gallery]
    return Section(title="What went wrong", blocks=blocks)


def label_table(labels: Sequence[LabelScore]) -> Table:
    """Counts, recall, precision, F1 and average precision by label; of many those with the lowest average precision."""
    is_long = len(labels) > plots.MAX_LISTED_CLASSES
    head = f"label (the {plots.MAX_LISTED_CLASSES} with the lowest average precision)" if is_long else "label"
    rows = [
        (
            label.average_precision or 0.0,
            [
                label.name,
                *plots.count_cells(label.images, label.predicted, label.correct),
                "-" if label.average_precision is None else f"{label.average_precision:.1%}",
                f"{label.threshold:.3g}",
            ],
        )
        for label in labels
        if label.average_precision is not None or not is_long
    ]
    return Table(head=[head, *plots.COUNT_COLUMNS, "average precision", "threshold"], rows=plots.lowest_rows(rows))


def _evaluation_cautions(run: RecordedRun, saved: SavedEvaluation) -> list[Paragraph]:
    """What limits the conclusions: the evaluation's own notes, and a better checkpoint since."""
    cautions = [Paragraph(text=f"{note[:1].upper()}{note[1:]}.", caution=True) for note in saved.notes]
    best = read.best_evaluation(run)
    was_best = saved.standing is not None and saved.standing.startswith("the best")
    if was_best and best is not None and best[1] != saved.step:
        text = f"The evaluation of step {best[1]:,.0f} is better by now: run `train eval RUN --report` again."
        cautions.append(Paragraph(text=text, caution=True))
    return cautions


def _evaluation_facts(saved: SavedEvaluation) -> dict[str, str]:
    standing = f" ({saved.standing} when it was measured)" if saved.standing else ""
    shown = read.meaningful_metrics(saved.task, len(saved.classes))
    scores = {metric.label: metric.format(saved.values.get(metric.name)) for metric in shown}
    facts = {
        "measured": saved.measured,
        "weights": f"of step {saved.step:,}{standing}, {saved.weights}",
        **{label: value for label, value in scores.items() if value != NOT_MEASURED},
    }
    if saved.calibration is not None:
        error = saved.calibration.error
        facts["calibration error"] = f"{error:.4f} (ECE)" if math.isfinite(error) else NOT_MEASURED
        images = max(1, sum(each.images for each in saved.calibration.bins))
        confidence = sum(each.images * each.confidence for each in saved.calibration.bins) / images
        facts["mean confidence"] = f"{confidence:.2%}"
    if saved.numbers is not None:
        facts["mean error"] = f"{saved.numbers.mean_error:+.4g} (prediction - true)"
    return facts


def _class_matrix(run: RecordedRun, saved: SavedEvaluation) -> ConfusionMatrix | None:
    """The confusion matrix, if the report does not show the same one already."""
    if saved.confusion is None or not any(map(sum, saved.confusion)):
        return None
    matrix = ConfusionMatrix(
        step=saved.step, classes=saved.classes, matrix=tuple(tuple(row) for row in saved.confusion)
    )
    shown = plots.best_confusion(run) or run.confusion
    return None if shown is not None and shown.matrix == matrix.matrix else matrix


def starts_section(run: RecordedRun) -> Section | None:
    """A table of the starts, if the run had several."""
    if len(run.starts) < 2:
        return None
    rows = []
    for start in run.starts:
        shown = {**start, "world_size": "none: finished before"} if start.get("idle") else start
        ended = start.get("ended")
        ending = f"{ended.get('code')}, {ended.get('cause')}" if isinstance(ended, dict) else read.NOT_RECORDED
        values = [read.format_value(shown.get(key)) for key in ("at", "step", "world_size", "hosts", "launcher")]
        if START_TIME.fullmatch(values[0]):
            values[0] = values[0].replace("T", " ").replace("+00:00", " UTC")  # as `format_time` writes it
        rows.append([*values, ending])
    head = ["began", "from step", "ranks", "hosts", "launcher", "ended"]
    return Section(title="Starts", blocks=[Table(head=head, rows=rows, left=6)])


def settings_section(run: RecordedRun) -> Section:
    """The config without keys that had no effect, and the versions."""
    rows = {key: read.format_setting(value) for key, value in run.config.items() if key not in run.unused_keys}
    unused_keys = ", ".join(key for key in run.config if key in run.unused_keys)
    rows |= run.facts_of("versions", "version of ")
    left_out = [Paragraph(text=f"Left out, for they had no effect here: {unused_keys}.")] if unused_keys else []
    return Section(
        title="Settings", blocks=[DescriptionList(rows=rows) if rows else Paragraph(text="Not recorded."), *left_out]
    )


def format_time(seconds: float) -> str:
    """A Unix time as UTC, to the second."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"


def _as_sentence(text: str) -> str:
    """End with a full stop and begin with a capital, unless the first word is a file name."""
    return f"{text}." if "." in text.split()[0] else f"{text[:1].upper()}{text[1:]}."
