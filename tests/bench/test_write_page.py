"""docs/evidence/performance.md has every target, and takes what a bench has measured beside what others have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from processes import python

from bench import measurements, targets
from bench import write_page as page
from bench.__main__ import BENCH, TRAIN_BENCH, BenchCommand
from bench.estimates import estimate_median, exact
from bench.measurements import Row, reported_row

TEXT = page.PAGE.read_text()


def bench_json(*rows: Row, device: str = "cpu") -> dict[str, Any]:
    """bench.json of these rows."""
    machine = measurements.describe_machine("cpu", now=0.0) | {"device": device}
    return measurements.as_json(rows, machine)


def lines(text: str, table: str) -> dict[str, list[str]]:
    """The cells of each row of a table."""
    inside = text.split(page.BEGIN.format(table))[1].split(page.END.format(table))[0].strip().splitlines()[2:]
    return {cells[0]: cells for cells in (line.removeprefix("| ").removesuffix(" |").split(" | ") for line in inside)}


SEVEN = targets.measured("7", estimate_median([5.0, 6.0, 7.0]), peer_workers=1, ours_images_per_s=40_000.4)


def test_the_page_is_as_its_writer_leaves_it() -> None:
    assert page.update_page(TEXT) == TEXT


@pytest.mark.parametrize("table", page.TABLES)
def test_every_target_has_a_row_where_it_can_be_measured(table: str) -> None:
    assert {n for n, target in targets.TARGETS.items() if target.where in page.TABLES[table]} <= set(lines(TEXT, table))


def written(folder: Path, *results: dict[str, Any]) -> str:
    """The page of these results alone."""
    for result in results:
        page.write_measurements(result, folder)
    return page.update_page(TEXT, folder)


def test_a_measured_row_takes_its_place_with_machine_date_and_commit(tmp_path: Path) -> None:
    cells = lines(written(tmp_path, bench_json(SEVEN)), "cpu")["7"]
    assert cells[2:6] == ["6", "range 5 to 7", "≥ 4", "yes"]
    assert re.fullmatch(r".+; torch [\d.]+\S*, 1970-01-01, [0-9a-f]{7,}(-dirty)?", cells[6])


def test_each_machine_has_its_row_and_earlier_days_stand_beside_the_newest(tmp_path: Path) -> None:
    other, later = bench_json(SEVEN), bench_json(targets.measured("7", exact(3.0)))
    other["machine"] |= {"cpu": "another"}
    later["machine"] |= {"date": "1970-02-01"}
    text = written(tmp_path, later, bench_json(SEVEN), other)
    rows = [line for line in text.splitlines() if line.startswith("| 7 |") and "not measured" not in line]
    assert sorted(row.split(" | ")[5] for row in rows) == ["NO", "yes"]
    assert [row.endswith("| 6 (01-01) |") for row in rows if "1970-02-01" in row] == [True]


@pytest.mark.parametrize("date", ["1970-01-01", "1970-02-01"])
def test_figures_of_other_images_do_not_replace_those_of_a_row(date: str, tmp_path: Path) -> None:
    drawn, cut = (bench_json(targets.measured("16", exact(value), photos=images)) for value, images in
                  ((1.1, "drawn"), (1.6, "cut")))  # fmt: skip
    cut["machine"] |= {"date": date}
    rows = [line for line in written(tmp_path, drawn, cut).splitlines() if line.startswith("| 16 |")]
    assert sorted(row.split(" | ")[2] for row in rows) == ["1.1", "1.6"]


def test_rows_of_other_devices_are_in_their_own_table(tmp_path: Path) -> None:
    gpu = bench_json(targets.measured("2", exact(0.6)), device="NVIDIA H200")
    text = written(tmp_path, bench_json(SEVEN, targets.unmeasured("8", "no time")), gpu)
    assert lines(text, "gpu")["2"][2] == "0.6"
    assert lines(text, "gpu")["2"][6].startswith("NVIDIA H200")
    assert (lines(text, "cpu")["7"][2], lines(text, "cpu")["8"][2]) == ("6", "not measured")


def test_the_figures_behind_the_rows_of_a_day_are_kept_in_one_file(tmp_path: Path) -> None:
    first = bench_json(SEVEN, device="NVIDIA H200")
    second = bench_json(targets.measured("2", exact(0.6)), targets.unmeasured("7", "no time"), device="NVIDIA H200")
    paths = {page.write_measurements(results, tmp_path / "measurements") for results in (first, second)}
    assert [path.name for path in paths] == ["nvidia-h200-1970-01-01.json"]
    rows = json.loads(paths.pop().read_text())["rows"]
    assert [row["row"] for row in rows] == ["7", "2"]
    assert rows[0]["facts"] == {"peer_workers": 1, "ours_images_per_s": 40_000.4}


def test_curves_of_the_same_day_stay(tmp_path: Path) -> None:
    with_curve = bench_json(SEVEN) | {"series": [{"name": "scaling-strong", "lines": {}}]}
    for results in (with_curve, bench_json(SEVEN)):
        path = page.write_measurements(results, tmp_path)
    assert [series["name"] for series in json.loads(path.read_text())["series"]] == ["scaling-strong"]


def test_values_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    output = measurements.as_json([SEVEN], measurements.describe_machine("cpu", now=0.0, quick=True))
    (tmp_path / "bench.json").write_text(json.dumps(output))
    script = Path(page.__file__)
    ended = python(str(script), str(tmp_path / "bench.json"))
    assert ended.returncode == 64
    assert "--quick" in ended.stderr
    assert page.PAGE.read_text() == TEXT


def test_figures_beside_a_row_all_stay_in_its_place_by_their_size(tmp_path: Path) -> None:
    names = ("14 strong, 16", "14", "14 strong, 2", "15 ours")
    beside = [reported_row(name, "w", exact(1.0)) for name in names]
    order = [name for name in lines(written(tmp_path, bench_json(*beside)), "cpu") if name in names]
    assert order == ["14", "14 strong, 2", "14 strong, 16", "15 ours"]


def test_a_row_that_is_measured_no_more_is_left_out(tmp_path: Path) -> None:
    assert "9a" not in lines(written(tmp_path, bench_json(reported_row("9a", "w", exact(1.0)))), "cpu")


@pytest.mark.parametrize(
    ("path", "program"), [("evidence/performance.md", BENCH), ("performance.md", TRAIN_BENCH)], ids=["bench", "train"]
)
def test_the_parts_that_a_page_names_exist(path: str, program: BenchCommand) -> None:
    names = re.findall(r"^\| `(\w+)` \|", (page.ROOT / "docs" / path).read_text(), re.M)
    assert set(names) == {*program.benches}
