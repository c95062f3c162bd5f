"""This module builds a report from runs and benchmarks, and writes HTML, Markdown and PNG files.

The HTML page holds its pictures, needs no script and no network, and can be printed.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from stat import S_ISREG
from statistics import median
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train import files as file_io
from train.metrics import NOT_MEASURED
from train.report import compare, plots, read
from train.report.compare import RunDifferences, ScalingMeasurement
from train.report.document import Block, DescriptionList, Paragraph, Picture, Report, Section, Table
from train.report.plots import DPI, Panel, PlotSeries, TargetRatio
from train.report.read import RecordedRun, finite_or_nan, format_number

# The browser is told to load and run nothing, should a text ever get past `escape`.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
GENERATOR_TAG: Final = '<meta name="generator" content="train report">'  # by which we know our own pages
MAX_SMALL_PICTURE_PIXELS: Final = 510  # pixels: two such pictures stand beside each other
MAX_UNBROKEN_LETTERS: Final = 30  # letters
MAX_SHORT_LIST_ROWS: Final = 20  # facts: more stand in two columns
SCREEN_DPI: Final = 96  # what a browser calls an inch
STYLESHEET: Final = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1.25rem 3rem; background: #fff; color: #111827;
  font: 15px/1.5 system-ui, "Segoe UI", "Liberation Sans", "DejaVu Sans", Arial, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.65rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; padding-bottom: .25rem; border-bottom: 2px solid #e5e7eb; }
p { margin: .6rem 0; max-width: 50rem; }
.made { color: #6b7280; font-size: .85rem; margin: 0 0 1rem; }
.caution { background: #fef2f2; border-left: 4px solid #b91c1c; padding: .6rem .9rem; max-width: none; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; vertical-align: top; border-bottom: 1px solid #e5e7eb;
  overflow-wrap: normal; }
th { font-weight: 600; color: #374151; border-bottom-color: #9ca3af; }
th.w, td.w { text-align: left; }
td.w { overflow-wrap: anywhere; min-width: 8rem; }
td.w + td.w { min-width: 5.5rem; }
.names td:first-child { white-space: nowrap; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .2rem 1.2rem; margin: .6rem 0;
  font-size: .92rem; }
dt { color: #4b5563; }
dd { margin: 0; }
.long { display: block; columns: 25rem 2; column-gap: 2.5rem; font-size: .85rem; }
.long div { display: grid; grid-template-columns: 15.5rem 1fr; gap: 1rem; break-inside: avoid; padding: .1rem 0; }
.large { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.large div { flex: 1 1 9.5rem; border: 1px solid #e5e7eb; border-radius: .5rem; padding: .6rem .8rem; }
.large dt { font-size: .8rem; }
.large dd { font-size: 1.25rem; font-weight: 600; line-height: 1.3; }
figure { margin: 1rem 0; overflow-x: auto; }
img { display: block; max-width: 100%; height: auto; }
figcaption { font-size: .85rem; color: #4b5563; }
.small { display: inline-block; vertical-align: top; max-width: 100%; margin-right: 1rem; }
@media print {
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { break-after: avoid; }
  section > p { break-after: avoid; }
  p, figure, .large, tr { break-inside: avoid; }
  .small { width: 47%; margin: 1mm 2% 1mm 0; }
  thead { display: table-header-group; }
  img { max-width: 100%; max-height: 110mm; width: auto; }
  td.w, td.w + td.w { min-width: 0; }
  th { overflow-wrap: anywhere; }
  figure, .scroll { overflow: visible; }
  .long { columns: 2; font-size: 7.5pt; }
  .long div { grid-template-columns: 12.5rem 1fr; }
  table { font-size: 8pt; }
  .caution { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def render_html(document: Report) -> str:
    """The whole page, self-contained."""
    title = _escape_html(document.title)
    sections = "\n".join(_html_section(section) for section in document.sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">
{GENERATOR_TAG}
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{STYLESHEET}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="made">{_escape_html(document.made)}</p>
{sections}
</main>
</body>
</html>
"""


def _html_section(section: Section) -> str:
    return "\n".join(
        [f"<section>\n<h2>{_escape_html(section.title)}</h2>", *map(_html_block, section.blocks), "</section>"]
    )


def _html_block(block: Block) -> str:
    return HTML_RENDERERS[type(block)](block)


def _html_paragraph(words: Paragraph) -> str:
    kind = ' class="caution" role="note"' if words.caution else ""
    return f"<p{kind}>{_escape_html(words.text)}</p>"


def _html_description_list(facts: DescriptionList) -> str:
    pairs = [f"<dt>{_escape_html(name)}</dt><dd>{_escape_html(value)}</dd>" for name, value in facts.rows.items()]
    if facts.large:
        return '<dl class="large">' + "".join(f"<div>{pair}</div>" for pair in pairs) + "</dl>"
    if len(pairs) > MAX_SHORT_LIST_ROWS:
        return '<dl class="long">' + "\n".join(f"<div>{pair}</div>" for pair in pairs) + "</dl>"
    return "<dl>" + "\n".join(pairs) + "</dl>"


def _html_table(table: Table) -> str:
    head = _html_row(table, table.head, "th")
    rows = "\n".join(_html_row(table, row, "td") for row in table.rows)
    fits = all(len(row[0]) <= MAX_UNBROKEN_LETTERS for row in table.rows)  # no break in `run-1`; longer ones may
    kind = ' class="names"' if fits else ""
    return f'<div class="scroll"><table{kind}>\n<thead>{head}</thead>\n<tbody>{rows}</tbody>\n</table></div>'


def _html_row(table: Table, cells: Sequence[str], tag: str) -> str:
    words = [' class="w"' if table.holds_words(at) else "" for at in range(len(cells))]
    return (
        "<tr>"
        + "".join(f"<{tag}{kind}>{_escape_html(cell)}</{tag}>" for kind, cell in zip(words, cells, strict=True))
        + "</tr>"
    )


def _html_picture(picture: Picture) -> str:
    width, height = (side * SCREEN_DPI // DPI for side in png_size(picture.png))
    data = base64.b64encode(picture.png).decode()
    sizes = f'width="{width}" height="{height}"'
    kind = ' class="small"' if width <= MAX_SMALL_PICTURE_PIXELS else ""
    image = f'<img {sizes} alt="{_escape_html(picture.alt)}" src="data:image/png;base64,{data}">'
    caption = f"<figcaption>{_escape_html(picture.caption)}</figcaption>" if picture.caption else ""
    return f"<figure{kind}>{image}{caption}</figure>"


def png_size(png: bytes) -> tuple[int, int]:
    """(width, height) in pixels, from the PNG's own header."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _escape_html(text: str) -> str:
    """Text as text: nothing of it is markup, and what has no letter becomes one that shows that."""
    whole = text.encode("utf-8", "replace").decode()
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in whole))


HTML_RENDERERS: Final[dict[type, Callable[[Any], str]]] = {
    Paragraph: _html_paragraph,
    DescriptionList: _html_description_list,
    Table: _html_table,
    Picture: _html_picture,
}


# What would begin a link, a tag, code or emphasis somewhere in a line.
MARKDOWN_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~!&$])")
# And at the beginning of one a list, or a line under a heading.
MARKDOWN_LEADING: Final = re.compile(r"^(\s*(?:\d+(?=[.)]\s))?)([-+=.)])")


def render_markdown(document: Report) -> str:
    """The whole text. Pictures are named as files beside it."""
    parts = [
        f"# {escape_markdown(document.title)}",
        escape_markdown(document.made),
        *map(_markdown_section, document.sections),
    ]
    return "\n\n".join(parts) + "\n"


def escape_markdown(raw: str) -> str:
    """Text as text: nothing of it is markup."""
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in raw.encode("utf-8", "replace").decode())
    marked = MARKDOWN_SPECIAL.sub(r"\\\1", line)
    begun = MARKDOWN_LEADING.sub(r"\1\\\2", marked)
    return re.sub(r"(https?|www)([:.])", "\\1\u200b\\2", begun)


def _markdown_section(section: Section) -> str:
    return "\n\n".join(
        [f"## {escape_markdown(section.title)}", *(MARKDOWN_RENDERERS[type(block)](block) for block in section.blocks)]
    )


def _markdown_paragraph(words: Paragraph) -> str:
    return f"> **Caution:** {escape_markdown(words.text)}" if words.caution else escape_markdown(words.text)


def _markdown_description_list(facts: DescriptionList) -> str:
    return _markdown_table(Table(head=["", ""], rows=[[name, value] for name, value in facts.rows.items()], left=2))


def _markdown_table(table: Table) -> str:
    rule = ["---" if table.holds_words(at) else "---:" for at in range(len(table.head))]
    lines = [_markdown_row([escape_markdown(cell) for cell in table.head]), _markdown_row(rule)]
    return "\n".join([*lines, *(_markdown_row([escape_markdown(cell) for cell in row]) for row in table.rows)])


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_picture(picture: Picture) -> str:
    caption = f"\n\n{escape_markdown(picture.caption)}" if picture.caption else ""
    return f"![{escape_markdown(picture.alt)}]({picture.name}.png){caption}"


MARKDOWN_RENDERERS: Final[dict[type, Callable[[Any], str]]] = {
    Paragraph: _markdown_paragraph,
    DescriptionList: _markdown_description_list,
    Table: _markdown_table,
    Picture: _markdown_picture,
}


HTML_FILE, MARKDOWN_FILE = "report.html", "report.md"
OUTPUT_FIX: Final = "write `--output DIR`, a folder that you may write"
PICTURE_PATTERN: Final = re.compile(
    r"(curves|scaling|gpus|confusion|bench-[0-9]+)(-[a-z0-9-]+)?\.png"
)  # names that we give


def write_report(document: Report, folder: Path, *, own: bool) -> list[Path]:
    """Write everything, each file whole or not at all; the paths, the page first.

    own: `folder` is the default place, which may not be a link, nor hold anything else: nobody sent us there. An
    earlier report is replaced, with its pictures; a file of somebody else never.

    Raises:
        Failure: SECURITY for such a link; OUTPUT or IO, where the folder takes no files, or holds other ones.
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
    """The pictures of an earlier report in `folder`; refused where there are files of somebody else in their place."""
    try:
        there = {name for name in os.listdir(folder) if not name.startswith(file_io.TEMPORARY_PREFIX)}
    except OSError:  # none there, or `file_io.prepare` says why not
        return set()
    if _is_report_page(folder / HTML_FILE):
        return {name for name in there if PICTURE_PATTERN.fullmatch(name)}
    if others := there if own else there & names:
        raise Failure(
            f"{folder} holds files that are no report",
            found=", ".join(sorted(others)[:5]),
            fix="write `--output DIR`, a folder of its own",
            code=ExitCode.OUTPUT,
        )
    return set()


def _is_report_page(page: Path) -> bool:
    try:
        if not S_ISREG(page.lstat().st_mode):
            return False
        with page.open("rb") as file:
            return GENERATOR_TAG.encode() in file.read(4096)
    except OSError:
        return False


MAX_JSON_BYTES: Final = 64 * 2**20  # bytes
SCALING_PREFIX: Final = "scaling"  # how series begin whose x is processes and whose line `images_per_s` is throughput
MAX_TICKS: Final = 12  # places on an axis that all have their number
THROUGHPUT_KEY: Final = "images_per_s"
CONFIDENCE_BARS_TEXT: Final = (
    "Bars on speed-up and efficiency are the bounds of images per second: they hold its median with 95 %, or are the "
    "range of too few blocks. They are over the median of the fewest processes, whose own spread is not in them. The "
    "95 % CI in the table above is of the speed-up itself."
)
REACHED_LABELS: Final[Mapping[Any, str]] = {True: "yes", False: "no", None: "-"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResults:
    """What was read: as `train.bench.output` writes it, each object looked at where it is shown."""

    name: str
    machine: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    series: Sequence[Mapping[str, Any]]


def read_bench(path: Path) -> BenchResults:
    """The bench in a JSON file.

    Raises:
        Failure: NO_INPUT where it cannot be read, DATA where it is no bench.
    """
    try:
        facts = path.stat()  # of a pipe or a device, reading may never end
        found = json.loads(path.read_bytes()) if S_ISREG(facts.st_mode) and facts.st_size <= MAX_JSON_BYTES else None
    except OSError as error:
        fix = "give a run's folder, or the file that `train bench --output DIR` wrote"
        raise Failure(f"{path} cannot be read", found=error.strerror, fix=fix, code=ExitCode.NO_INPUT) from error
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not ("rows" in found or "series" in found):
        raise Failure(
            f"{path} holds no bench",
            expected="a JSON object with rows and series",
            fix="give the bench.json that `train bench --output DIR` wrote",
            code=ExitCode.DATA,
        )
    return parse_bench(found, name=path.stem if path.stem != "bench" else f"{path.resolve().parent.name}/{path.stem}")


def parse_bench(found: Mapping[str, Any], name: str) -> BenchResults:
    """The bench in such an object."""
    machine = found.get("machine")
    return BenchResults(
        name=name,
        machine=machine if isinstance(machine, dict) else {},
        rows=_only_objects(found.get("rows")),
        series=_only_objects(found.get("series")),
    )


def bench_section(bench: BenchResults, number: int = 1) -> Section:
    """The machine, the rows beside their targets, the series."""
    blocks: list[Block] = [
        DescriptionList(rows={str(name): _format_json_value(value) for name, value in bench.machine.items()})
    ]
    if held := [ratio for row in bench.rows if (ratio := _target_ratio(row)) is not None]:
        png = plots.draw_ratios("Measured against the target", held)
        alt = f"{sum(ratio.met for ratio in held)} of {len(held)} targets are reached"
        blocks.append(Picture(name=f"bench-{number}", png=png, alt=alt))
    if bench.rows:
        blocks.append(bench_table(bench))
    return Section(title=f"Bench {bench.name}", blocks=[*blocks, *_series_blocks(bench, number)])


def bench_pictures(bench: BenchResults) -> list[Picture]:
    """Of its section: `train bench --output` keeps them beside its JSON."""
    return [block for block in bench_section(bench).blocks if isinstance(block, Picture)]


def bench_table(bench: BenchResults) -> Table:
    """Every row, those that were not measured too."""
    head = ["#", "measured", "target", "reached", "value", "95 % CI", "of"]
    return Table(head=head, rows=[_bench_cells(row) for row in bench.rows], left=4)


def _bench_cells(row: Mapping[str, Any]) -> list[str]:
    asked = [
        _format_json_value(row.get("row")),
        _format_json_value(row.get("what")),
        _format_json_value(row.get("target")),
    ]
    value, low, high = (finite_or_nan(row.get(key)) for key in ("value", "low", "high"))
    if not math.isfinite(value):
        return [*asked, "-", f"{NOT_MEASURED}: {_format_json_value(row.get('missing', 'no reason given'))}", "", ""]
    reached = row.get("holds")
    between = (
        f"{'range ' * (row.get('sure') is False)}{format_number(low)} to {format_number(high)}" if low < high else ""
    )
    told = f"{format_number(value)} {_format_json_value(row.get('unit', ''))}".rstrip()
    return [
        *asked,
        REACHED_LABELS[reached if isinstance(reached, bool) else None],
        told,
        between,
        _format_json_value(row.get("of", "")),
    ]


def _target_ratio(row: Mapping[str, Any]) -> TargetRatio | None:
    """A row with a value and a target in numbers, `≥ 0.98` or `≤ 40 µs`."""
    sign, _, rest = _format_json_value(row.get("target")).partition(" ")
    value, low, high = (finite_or_nan(row.get(key)) for key in ("value", "low", "high"))
    try:
        target = float(rest.partition(" ")[0])
    except ValueError:
        return None
    if sign not in ("≥", "≤") or not math.isfinite(value) or not math.isfinite(target):
        return None
    spread = [edge if math.isfinite(edge) else value for edge in (low, high)]
    name = f"{_format_json_value(row.get('row'))} {_format_json_value(row.get('what'))}"
    met = row.get("holds") is True
    return TargetRatio(
        name=name, value=value, low=spread[0], high=spread[1], target=target, at_least=sign == "≥", met=met
    )


def _series_blocks(bench: BenchResults, number: int) -> list[Block]:
    """Series over processes as speed-up and efficiency, the others as they are."""
    of_scaling = {_scaling_kind(one): points for one in bench.series if (points := _throughput_points(one))}
    others = [one for one in bench.series if not _throughput_points(one)]
    bars = any(point.low is not None or point.high is not None for points in of_scaling.values() for point in points)
    found: list[Block] = [Paragraph(text=CONFIDENCE_BARS_TEXT)] if bars else []
    found += compare.scaling_blocks(of_scaling, name=f"bench-{number}-scaling")
    for at, one in enumerate(others, 1):
        found += plots.render_panels(f"bench-{number}-{at}", [_series_panel(one)], of=bench.name)
    return found


def _scaling_kind(series: Mapping[str, Any]) -> str:
    """`scaling-strong` is strong scaling."""
    return f"{str(series.get('name')).removeprefix(SCALING_PREFIX).strip('-')} {SCALING_PREFIX}".strip()


def _throughput_points(series: Mapping[str, Any]) -> list[ScalingMeasurement]:
    lines = _series_lines(series)
    if not str(series.get("name")).startswith(SCALING_PREFIX) or THROUGHPUT_KEY not in lines:
        return []
    low, high, paired = (dict(lines.get(name, ())) for name in ("low", "high", "speed-up"))
    return [
        ScalingMeasurement(processes=int(x), images_per_s=y, speed_up=paired.get(x), low=low.get(x), high=high.get(x))
        for x, y in lines[THROUGHPUT_KEY]
        if 1 <= x < 10**7
    ]


def _series_panel(series: Mapping[str, Any]) -> Panel:
    lines, dashed = _series_lines(series), series.get("dashed")
    limits = {str(name) for name in dashed} if isinstance(dashed, list) else set()
    places = sorted({x for line in lines.values() for x, _ in line})
    return Panel(
        title=_format_json_value(series.get("title")),
        x=_format_json_value(series.get("x")),
        y=_format_json_value(series.get("y")),
        series=[
            PlotSeries(
                name=name, x=[x for x, _ in line], y=[y for _, y in line], style=_line_style(name, limits), colour=at
            )
            for at, (name, line) in enumerate(lines.items())
        ],
        ticks=places if len(places) <= MAX_TICKS else (),
        log_x=_log_base(series, "log_x", places),
        log_y=_log_base(series, "log_y", [y for line in lines.values() for _, y in line]),
    )


def _line_style(name: str, limits: set[str]) -> plots.SeriesStyle:
    if name not in limits:
        return "points"
    return "ideal" if name == "ideal" else "limit"


def _log_base(series: Mapping[str, Any], key: str, values: Sequence[float]) -> int | None:
    """A logarithm is for numbers above 0."""
    return 10 if series.get(key) is True and all(value > 0 for value in values) else None


def _series_lines(series: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """The points of each line that are two numbers."""
    lines = series.get("lines")
    found: dict[str, list[tuple[float, float]]] = {}
    for name, points in lines.items() if isinstance(lines, dict) else ():
        pairs = (
            [pair for pair in points if isinstance(pair, list) and len(pair) == 2] if isinstance(points, list) else []
        )
        both = [(finite_or_nan(x), finite_or_nan(y)) for x, y in pairs]
        found[str(name)] = [(x, y) for x, y in both if math.isfinite(x) and math.isfinite(y)]
    return {name: line for name, line in found.items() if line}


def _only_objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _format_json_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


NO_TRAINING_TEXT = "none: finished before"


def build_report(
    runs: Sequence[RecordedRun], found: Sequence[BenchResults], *, anyway: bool, made: str, missing: Sequence[str] = ()
) -> Report:
    """One run in full, or several beside each other, and what was benched. missing: what was asked for beside them."""
    absent = [Paragraph(text=f"{line}.", caution=True) for line in missing]  # it begins with a path
    sections = [Section(title="Left out", blocks=absent)] if absent else []
    if len(runs) == 1:
        sections += _single_run_sections(runs[0])
    elif runs:
        sections += _comparison_sections(runs, compare.find_differences(runs), anyway=anyway)
    sections += [bench_section(bench, at) for at, bench in enumerate(found, 1)]
    return Report(title=_report_title(runs, found), sections=sections, made=made)


def _report_title(runs: Sequence[RecordedRun], found: Sequence[BenchResults]) -> str:
    if len(runs) == 1:
        return f"Run {runs[0].name}"
    return f"{len(runs)} runs beside each other" if runs else f"Bench {', '.join(bench.name for bench in found)}"


def _single_run_sections(run: RecordedRun) -> list[Section]:
    matrix = plots.confusion_section(run)
    drawn = [
        summary_section(run),
        evaluations_section(run),
        plots.curves_section([run]),
        plots.gpu_section(run),
        matrix,
    ]
    parts = [*drawn, starts_section(run), settings_section(run)]
    return [part for part in parts if part is not None]


def _comparison_sections(runs: Sequence[RecordedRun], found: RunDifferences, *, anyway: bool) -> list[Section]:
    parts = [
        overview_section(runs, found),
        compare.scaling_section(runs, found, anyway=anyway),
        plots.curves_section(runs),
    ]
    parts += [plots.gpu_comparison_section(runs), plots.confusion_comparison_section(runs)]
    nothing = Paragraph(text="No setting, no version, no commit, no image and no host is different.")
    parts.append(Section(title="What differs", blocks=compare.difference_tables(sort_by_metric(runs)) or [nothing]))
    return [part for part in parts if part is not None]


def summary_section(run: RecordedRun) -> Section:
    """The figures that a reader looks for first."""
    found = read.best_evaluation(run)
    metric = read.selection_metric(run)
    large = {
        f"best {read.metric_label(metric)}": read.format_metric(found[0] if found else None, metric),
        "speed": read.format_throughput(read.measured_throughput(run)),
        "training": read.format_duration(read.training_seconds(run)),
        "ran on": read.describe_world(run),
    }
    blocks: list[Block] = [
        Paragraph(text=_as_sentence(read.describe_status(run))),
        DescriptionList(rows=large, large=True),
    ]
    blocks += [Paragraph(text=f"{_as_sentence(missing)}", caution=True) for missing in run.missing]
    blocks.append(DescriptionList(rows=_run_details(run)))
    return Section(title="In short", blocks=blocks)


def evaluations_section(run: RecordedRun) -> Section | None:
    """The metrics of the best evaluation, by the run's own metric, and of the last one."""
    selected, best = read.selection_metric(run), read.best_evaluation(run)
    steps, _ = run.column("eval", selected.name)
    if not steps:
        return None
    columns = [
        (metric, dict(zip(*run.column("eval", metric.name), strict=True))) for metric in read.validation_metrics(run)
    ]
    measured = [(metric, values) for metric, values in columns if any(map(math.isfinite, values.values()))]
    evaluations = {f"best {read.metric_label(selected)}": best[1] if best else None, "last": max(steps)}
    rows = [
        [name, f"{step:,.0f}", *(read.format_metric(values.get(step), metric) for metric, values in measured)]
        for name, step in evaluations.items()
        if step is not None
    ]
    head = ["evaluation", "step", *(read.metric_label(metric) for metric, _ in measured)]
    return Section(title="Evaluations", blocks=[Table(head=head, rows=rows)])


def overview_section(runs: Sequence[RecordedRun], found: RunDifferences) -> Section:
    """One line for each run, and whether their speeds may be compared."""
    blocks: list[Block] = []
    if found.differs and not found.alike:
        blocks.append(Paragraph(text=compare.incomparable_caution(runs, found), caution=True))
    elif found.weak and found.differs:
        told = "The global batch grows with the ranks: these runs are compared as weak scaling, by images per second."
        blocks.append(Paragraph(text=told))
    else:
        *most, last = compare.MUST_MATCH
        blocks.append(Paragraph(text=f"The same {', '.join(most)} and {last} in all runs."))
    blocks += [Paragraph(text=line, caution=True) for line in compare.speed_cautions(runs, found)]
    blocks += [Paragraph(text=f"{run.name}: {missing}.", caution=True) for run in runs for missing in run.missing]
    return Section(title="In short", blocks=[*blocks, _runs_table(sort_by_metric(runs))])


def sort_by_metric(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The best first; as they were named where they were judged by other metrics, or have no score."""
    metric, *others = {read.selection_metric(run).name: read.selection_metric(run) for run in runs}.values()
    if others:
        return list(runs)
    keys = {run.name: metric.rank_key(best[0]) for run in runs if (best := read.best_evaluation(run))}
    return sorted(runs, key=lambda run: keys.get(run.name, math.inf))


def _runs_table(runs: Sequence[RecordedRun]) -> Table:
    head = ["run", "best by its metric", "images/s", "training", "global batch", "precision", "ran on", "how it ended"]
    rows = []
    for run in runs:
        best, speed = read.best_evaluation(run), read.measured_throughput(run)
        metric = read.selection_metric(run)
        rows.append(
            [
                run.name,
                f"{metric.name} {read.format_metric(best[0] if best else None, metric)}",
                read.format_throughput(speed).removesuffix(" images/s")
                if speed and not speed.warm_up
                else read.format_throughput(speed),
                read.format_duration(read.training_seconds(run)),
                compare.MUST_MATCH[compare.GLOBAL_BATCH](run),
                compare.MUST_MATCH["precision"](run),
                read.describe_world(run),
                read.describe_status(run),
            ]
        )
    return Table(head=head, rows=rows, words=(6, 7))


def _run_details(run: RecordedRun) -> dict[str, str]:
    """What ran, where, when."""
    found, at = read.best_evaluation(run), read.event_times(run)
    batch = [read.format_value(run.fact("training", key)) for key in ("micro_batch_size", "accumulation")]
    # The world stands above, in words.
    known = {key: value for key, value in compare.run_identity(run).items() if key not in compare.WORLD_KEYS}
    details = {
        "model": compare.MUST_MATCH["model"](run),
        "data": compare.MUST_MATCH["data"](run),
        "images read": _describe_image_source(read.format_value(run.fact("training", "loader"))),
        "device": read.format_value(run.fact("training", "device")),
        "precision": compare.MUST_MATCH["precision"](run),
        "global batch": f"{compare.MUST_MATCH[compare.GLOBAL_BATCH](run)} "
        f"(micro batch {batch[0]}, accumulation {batch[1]})",
        "best step": f"{found[1]:,.0f}" if found else NOT_MEASURED,
        "checkpoints": _describe_checkpoints(run),
        "recorded": f"{format_time(at[0])} to {format_time(at[-1])}" if at else NOT_MEASURED,
        **known,
        "folder": str(run.folder.absolute()),
    }
    return details | _loss_spike_rows(run)


def _describe_checkpoints(run: RecordedRun) -> str:
    stood = [
        value
        for event in run.events.get("checkpoint", ())
        if (value := finite_or_nan(event.get("stalled_seconds"))) >= 0
    ]
    if not stood:
        return "none recorded"
    waited = f"{median(stood) * 1000:,.0f} ms for one (median), {max(stood) * 1000:,.0f} ms at most"
    return f"{len(stood)} written, {run.kept} kept; training waited {waited}"


def _describe_image_source(loader: str) -> str:
    """From memory, by 4 workers."""
    return f"by {loader}" if "worker" in loader else f"from {loader}" if loader.startswith("memory") else loader


def _loss_spike_rows(run: RecordedRun) -> dict[str, str]:
    """Jumps of the loss, and what was done about them."""
    steps = {kind: [f"{step:,.0f}" for step in run.column(kind, "loss")[0]] for kind in ("spike", "rollback")}
    return {kind: f"at step {', '.join(at)}" for kind, at in steps.items() if at}


def starts_section(run: RecordedRun) -> Section | None:
    """Each start of a run that had several."""
    if len(run.starts) < 2:
        return None
    head = ["began", "from step", "ranks", "hosts", "launcher", "ended"]
    shown = [{**start, "world_size": NO_TRAINING_TEXT} if start.get("idle") else start for start in run.starts]
    rows = [
        [_format_start_value(start, key) for key in ("at", "step", "world_size", "hosts", "launcher")]
        for start in shown
    ]
    ended = [start.get("ended") for start in run.starts]
    told = [f"{end.get('code')}, {end.get('cause')}" if isinstance(end, dict) else "not recorded" for end in ended]
    lines = [[*row, end] for row, end in zip(rows, told, strict=True)]
    return Section(title="Starts", blocks=[Table(head=head, rows=lines, left=6)])


def settings_section(run: RecordedRun) -> Section:
    """The configuration, without what did nothing in it, and the versions."""
    rows = {key: read.format_setting(value) for key, value in run.config.items() if key not in run.idle}
    idle = ", ".join(key for key in run.config if key in run.idle)
    versions = run.fact("versions")
    known = versions.items() if isinstance(versions, dict) else ()
    rows |= {f"version of {name}": read.format_value(value) for name, value in known}
    left_out = [Paragraph(text=f"Left out, for they had no effect here: {idle}.")] if idle else []
    return Section(
        title="Settings", blocks=[DescriptionList(rows=rows) if rows else Paragraph(text="Not recorded."), *left_out]
    )


def format_time(seconds: float) -> str:
    """In UTC, to the second."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"


def _format_start_value(start: object, key: str) -> str:
    value = start.get(key) if isinstance(start, dict) else None
    return read.format_value(value)


def _as_sentence(text: str) -> str:
    """A name of a file stays as it is."""
    return f"{text}." if "." in text.split()[0] else f"{text[:1].upper()}{text[1:]}."
