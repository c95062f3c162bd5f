"""The whole document (one run, several, benches), and its files: whole, where they were asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import found_finished, history, make_run, of_gpus

from entrypoint import ExitCode, Failure
from train.report import page, plots, read
from train.report.document import DescriptionList, Picture, Report, Section, Table, render_html, render_markdown

PNG = b"\x89PNG" + bytes(30)
DOCUMENT = Report(title="t", sections=[Section(title="s", blocks=[Picture(name="a", png=PNG, alt="")])], byline="now")


def report(*folders: Path, anyway: bool = False) -> Report:
    """Of these runs."""
    runs, missing = read.load_runs([str(folder) for folder in folders])
    return page.build_report(runs, [], anyway=anyway, byline="now", missing=missing)


def titles(document: Report) -> list[str]:
    """Of the sections."""
    return [section.title for section in document.sections]


def test_one_run_is_shown_in_full(tmp_path: Path) -> None:
    document = report(make_run(tmp_path / "run", ending={"code": 0, "step": 20, "cause": "finished"}))
    assert titles(document) == ["In short", "Evaluations", "Curves", "GPU use", "Confusion matrix", "Settings"]
    assert document.cautions() == []
    facts = next(block for block in document.blocks() if isinstance(block, DescriptionList) and block.large)
    assert facts.rows["best val accuracy"] == "75.00%"
    assert facts.rows["speed"] == "2,000 images/s"


def test_the_best_and_the_last_evaluation_stand_in_a_table(tmp_path: Path) -> None:
    section = page.evaluations_section(read.load_run(make_run(tmp_path / "run", settings=["eval.metric=loss"])))
    assert section is not None
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert table.head == ["evaluation", "step", "accuracy", "macro F1", "loss"]
    assert table.rows == [
        ["best val loss", "20", "75.00%", "0.6500", "0.0500"],
        ["last", "20", "75.00%", "0.6500", "0.0500"],
    ]


TEST = {"event": "test", "step": 20, "weights_step": 10, "samples": 400, "accuracy": 0.7, "loss": 0.2, "macro_f1": 0.6}


def with_test(share: float = 0.7, samples: int = 200) -> list[dict[str, Any]]:
    """A history whose evaluations say on how many images, and the measurement of the test split at its end."""
    lines = [line | ({"samples": samples} if line["event"] == "eval" else {}) for line in history(1000)]
    return [*lines, TEST | {"accuracy": share, "time": 1_795_000_100.0}]


def test_the_test_split_stands_beside_the_validation_with_its_uncertainty(tmp_path: Path) -> None:
    document = report(make_run(tmp_path / "run", events=with_test()))
    facts = next(block for block in document.blocks() if isinstance(block, DescriptionList) and block.large)
    assert (facts.rows["best val accuracy"], facts.rows["test accuracy"]) == ("75.00%", "70.00%")
    section = next(section for section in document.sections if section.title == "Evaluations")
    table, *texts = section.blocks
    assert isinstance(table, Table)
    assert table.head == ["evaluation", "step", "images", "accuracy", "macro F1", "loss", "95 % of accuracy"]
    assert table.rows[0][2:4] == ["200", "75.00%"]
    assert table.rows[-1] == ["test split", "10", "400", "70.00%", "0.6000", "0.2000", "65.3 to 74.3%"]
    assert "chose nothing" in str(texts)


def overview(*folders: Path) -> list[Table]:
    section = next(section for section in report(*folders).sections if section.title == "In short")
    return [block for block in section.blocks if isinstance(block, Table)]


def test_the_setting_that_differs_stands_beside_the_score_and_its_uncertainty(tmp_path: Path) -> None:
    settings = {"small": ["optim.lr=0.05"], "large": ["optim.lr=0.2", "data.workers=1"]}
    (table,) = overview(
        *(make_run(tmp_path / name, events=with_test(), settings=words) for name, words in settings.items())
    )
    assert table.head[:6] == [
        "run", "optim.lr", "best by its metric", "its 95 % interval", "on the test split", "its 95 % interval"
    ]  # fmt: skip
    assert table.rows[0][:6] == ["small", "0.05", "val accuracy 75.00%", "68.6 to 80.5%", "70.00%", "65.3 to 74.3%"]
    assert [row[1] for row in table.rows] == ["0.05", "0.2"]


def test_of_many_settings_that_differ_one_column_holds_all(tmp_path: Path) -> None:
    words = ["optim.lr=0.2", "optim.momentum=0.8", "optim.weight_decay=0.1", "train.epochs=9"]
    (table,) = overview(make_run(tmp_path / "one"), make_run(tmp_path / "two", settings=words))
    assert table.head[:3] == ["run", "settings that differ", "best by its metric"]
    assert table.rows[1][1] == "optim.lr=0.2, optim.momentum=0.8, optim.weight_decay=0.1, train.epochs=9"


def test_runs_that_differ_in_their_seed_get_a_mean_and_a_standard_deviation(tmp_path: Path) -> None:
    folders = [
        make_run(
            tmp_path / f"{rate}-{seed}",
            settings=[f"run.seed={seed}", f"optim.lr={rate}"],
            events=[line | ({"accuracy": 0.7 + seed / 100} if line["event"] == "eval" else {}) for line in history(9)],
        )
        for rate, seed in ((0.1, 1), (0.1, 2), (0.1, 3), (0.2, 4))
    ]
    _, table = overview(*folders)
    assert table.head == ["settings", "runs", "best: mean ± standard deviation"]
    assert table.rows == [["optim.lr=0.1", "3", "val accuracy 72.00% ± 1.00%"]]


def test_a_run_that_has_just_begun_gets_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("run: {name: new}\n")
    document = report(tmp_path)
    assert "unfinished" in str(document.blocks()[0]).lower()
    assert [line.split()[0] for line in document.cautions()] == ["run.json", "metrics.jsonl"]


def test_several_starts_are_listed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    record: dict[str, Any] = json.loads((folder / "run.json").read_text())
    record["starts"][0]["ended"] = {"code": 75, "cause": "SIGUSR1"}
    record["starts"].append({"step": 10, "world_size": 4, "hosts": ["node02"], "at": "2026-11-23T23:33:18+00:00"})
    (folder / "run.json").write_text(json.dumps(record))
    section = page.starts_section(read.load_run(folder))
    assert section is not None
    assert "75, SIGUSR1" in str(section)
    assert "2026-11-23 23:33:18 UTC" in str(section)


def test_a_start_that_found_the_run_finished_is_listed_as_one_that_trained_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    found_finished(folder, step=20)
    section = page.starts_section(read.load_run(folder))
    assert section is not None
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert [row[2] for row in table.rows] == ["2", "none: finished before"]


def test_a_run_that_is_not_there_is_a_caution(tmp_path: Path) -> None:
    document = report(make_run(tmp_path / "one"), tmp_path / "gone", make_run(tmp_path / "two"))
    assert document.title == "2 runs compared"
    assert "gone is not a run's folder: it does not exist" in document.cautions()[0]


def test_a_path_keeps_its_letters_in_a_caution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = report(make_run(Path("runs/one")), Path("runs/gone"))
    assert document.cautions()[0] == "runs/gone is not a run's folder: it does not exist."


@pytest.mark.parametrize(
    ("loader", "text"), [("memory", "from memory"), ("4 workers", "by 4 workers"), ("not said", "not said")]
)
def test_the_figures_of_a_run_are_told_in_plain_words(tmp_path: Path, loader: str, text: str) -> None:
    folder = make_run(tmp_path / "run", training={"loader": loader})
    (folder / "checkpoints/step-00000020").mkdir(parents=True)
    rows = page._run_details(read.load_run(folder))
    assert rows["images read"] == text
    assert rows["checkpoints"] == "1 written, 1 kept; training waited 15 ms for one (median), 15 ms at most"
    assert "recorded" in rows


def test_first_steps_are_said_to_be_that_in_the_overview_too(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", events=history(1000)[:1])
    assert "100 images/s (first steps only)" in str(report(first, make_run(tmp_path / "two")).blocks())


def test_unlike_runs_are_said_to_be_unlike_first_of_all(tmp_path: Path) -> None:
    first, two = make_run(tmp_path / "one", ranks=1), make_run(tmp_path / "two", training={"precision": "bf16"})
    document = report(first, two)
    assert "did not compute the same (precision)" in document.cautions()[0]
    assert "precision: fp32 (one), bf16 (two)" in str(document.blocks()[0])
    assert "scaling-efficiency" not in [picture.name for picture in document.pictures()]
    assert "scaling-efficiency" in [picture.name for picture in report(first, two, anyway=True).pictures()]


def test_several_runs_stand_in_one_table_of_gpus_and_of_classes(tmp_path: Path) -> None:
    document = report(*(make_run(tmp_path / name, events=of_gpus(1)) for name in ("a", "b")))
    tables = {block.head[0]: block for block in document.blocks() if isinstance(block, Table) and len(block.head) > 2}
    assert [row[0] for row in tables["run"].rows] == ["a", "b"]
    assert tables["class"].rows[0] == ["cat", "80.0%", "80.0%"]
    assert [picture.name for picture in document.pictures()] == ["confusion-1", "confusion-2"]


def test_the_best_run_comes_first(tmp_path: Path) -> None:
    worse = [line | {"accuracy": 0.1} for line in history(1000)]
    document = report(make_run(tmp_path / "worse", events=worse), make_run(tmp_path / "better"))
    table = next(block for block in document.blocks() if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["better", "worse"]


def test_the_image_of_a_run_is_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    recorded = json.loads((folder / "run.json").read_text()) | {"image": {"digest": "sha256:1"}}
    (folder / "run.json").write_text(json.dumps(recorded))
    assert "'image: digest': 'sha256:1'" in str(report(folder).blocks())


def test_accidents_of_the_loss_are_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", events=[{"event": "spike", "step": 7, "loss": 90.0, "time": 1e30}])
    assert "'spike': 'at step 7'" in str(report(folder))


def test_settings_that_had_no_effect_are_left_out_by_name(tmp_path: Path) -> None:
    section = page.settings_section(read.load_run(make_run(tmp_path / "run", settings=["optim.name=adamw"])))
    facts, words = section.blocks
    assert isinstance(facts, DescriptionList)
    assert not {"optim.momentum", "data.root"} & set(facts.rows)
    assert facts.rows["optim.name"] == "adamw"
    assert "optim.momentum" in str(words)


@pytest.mark.parametrize(("classes", "is_told"), [(5, False), (6, True)])
def test_of_five_classes_nobody_is_told_the_best_five(tmp_path: Path, classes: int, is_told: bool) -> None:
    events = [event | {"top5_accuracy": 1.0} for event in history(100.0)]
    section = page.evaluations_section(
        read.load_run(make_run(tmp_path / "run", events=events, training={"classes": classes}))
    )
    assert ("top-5" in str(section)) == is_told


def scored(folder: Path, accuracy: float, *settings: str, ended: dict[str, Any] | None = None) -> Path:
    """A run with this best accuracy, on 200 images."""
    events = [line | ({"accuracy": accuracy, "samples": 200} if line["event"] == "eval" else {}) for line in history(9)]
    return make_run(folder, settings=settings, events=events, ending=ended)


def numbers(folder: Path, error: float) -> Path:
    """A run that predicts numbers."""
    scores = {"mae": error, "r2": 0.5, "loss": 0.1}
    events = [line | (scores if line["event"] == "eval" else {}) for line in history(9)]
    words = ["data.name=table", "data.root=ages.csv", "eval.metric=mae"]
    made = make_run(folder, settings=words, events=events, training={"task": "regression", "classes": 1})
    (made / "confusion.json").unlink()
    return made


def test_runs_of_other_tasks_and_data_stand_in_groups_and_each_is_sorted_by_its_score(tmp_path: Path) -> None:
    folders = [
        numbers(tmp_path / "ages-2", 9.0),
        scored(tmp_path / "photos-2", 0.6, "data.name=folder", "data.root=photos"),
        numbers(tmp_path / "ages-1", 3.0),
        scored(tmp_path / "photos-1", 0.9, "data.name=folder", "data.root=photos"),
        scored(tmp_path / "icons-1", 0.7, "data.name=folder", "data.root=icons"),
    ]
    document = report(*folders)
    tables = {
        section.title: [row[0] for block in section.blocks if isinstance(block, Table) for row in block.rows]
        for section in document.sections
        if section.title.endswith("In short")
    }
    assert tables == {
        "Regression of table ages.csv: In short": ["ages-1", "ages-2"],
        "Classification of folder photos, 3 classes: In short": ["photos-1", "photos-2"],
        "Classification of folder icons, 3 classes: In short": ["icons-1"],
    }
    names = [picture.name for picture in document.pictures()]
    assert len({*names}) == len(names)
    assert all(page.PICTURE_PATTERN.fullmatch(f"{name}.png") for name in names)
    assert "%" not in str([panel.y for panel in plots.comparison_panels([read.load_run(folders[0])])])


def folds(folder: Path, *parts: str) -> list[Path]:
    words = ("data.name=folder", "data.root=photos")
    return [scored(folder / f"fold-{at}", 0.7 + at / 100, *words, f"data.fold={part}") for at, part in enumerate(parts)]


def test_folds_are_added_up_to_a_mean_and_one_matrix_over_all_images(tmp_path: Path) -> None:
    document = report(*folds(tmp_path, "1/3", "2/3", "3/3"))
    (section,) = (section for section in document.sections if section.title == "Folds")
    _, means, result, *_, classes = section.blocks
    assert isinstance(means, Table)
    assert isinstance(classes, Table)
    assert means.rows == [["defaults", "3", "val accuracy 71.00% ± 1.00%"]]
    assert "defaults: all folds; 73.3% of the 90 validation images of all of them are right." in str(result)
    assert [row[:4] for row in classes.rows] == [
        ["cat", "30", "42", "24"], ["dog", "30", "33", "27"], ["<b>owl</b>", "30", "15", "15"]
    ]  # fmt: skip
    assert "confusion-folds-1" in [picture.name for picture in document.pictures()]


@pytest.mark.parametrize(
    ("parts", "text"),
    [(("1/3", "2/3"), "2 of 3 folds are here"), (("1/3", "2/4"), "do not add up")],
)
def test_folds_that_are_not_all_folds_are_said_to_be_that(tmp_path: Path, parts: tuple[str, ...], text: str) -> None:
    assert text in " ".join(report(*folds(tmp_path, *parts)).cautions())


def test_a_run_without_a_fold_is_left_out_of_the_folds(tmp_path: Path) -> None:
    document = report(*folds(tmp_path, "1/3", "2/3", "3/3", "null"))
    (section,) = (section for section in document.sections if section.title == "Folds")
    _, means, left_out, result, *_ = section.blocks
    assert isinstance(means, Table)
    assert means.rows == [["defaults", "3", "val accuracy 71.00% ± 1.00%"]]
    assert "Left out (the same settings, but data.fold is null): fold-3." in str(left_out)
    assert "all folds" in str(result)
    assert not any("add up" in caution for caution in document.cautions())


def test_one_fold_beside_a_run_without_one_is_no_group_of_folds(tmp_path: Path) -> None:
    assert "Folds" not in titles(report(*folds(tmp_path, "1/3", "null")))


def test_what_is_the_same_in_all_runs_stands_in_a_sentence(tmp_path: Path) -> None:
    ended = {"code": 0, "step": 20, "cause": "finished"}
    document = report(*(scored(tmp_path / name, 0.5, ended=ended) for name in "ab"))
    line = (
        "In all runs global batch: 256; precision: fp32; ran on: 2 ranks on 1 node; how it ended: finished at step 20"
    )
    assert line in str(document.blocks())
    table = next(block for block in document.blocks() if isinstance(block, Table))
    assert [*table.head] == ["run", "best by its metric", "its 95 % interval", "images/s", "training"]


def test_many_cautions_are_one_whose_lines_are_folded(tmp_path: Path) -> None:
    document = report(*(make_run(tmp_path / str(at)) for at in range(3)), *(tmp_path / f"gone-{at}" for at in range(9)))
    assert document.cautions() == ["9 arguments are left out."]
    html, markdown = render_html(document), render_markdown(document)
    assert html.count("<li>") == html.count("is not a run&#39;s folder") == 9
    assert "> **Caution:** 9 arguments are left out.\n\n- " in markdown


def test_r_squared_is_drawn_without_percent(tmp_path: Path) -> None:
    made = read.load_run(numbers(tmp_path / "ages", 3.0))
    (panel,) = (panel for panel in plots.single_run_panels(made) if panel.title == "Scores")
    assert (panel.y, max(panel.series[-1].y)) == ("", 0.5)


def test_the_page_the_text_and_each_picture_are_written(tmp_path: Path) -> None:
    paths = page.write_report(DOCUMENT, tmp_path / "report", own=True)
    assert [path.name for path in paths] == ["report.html", "report.md", "a.png"]
    assert sorted(os.listdir(tmp_path / "report")) == ["a.png", "report.html", "report.md"]


def test_a_second_report_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for title in ("first", "second"):
        page.write_report(Report(title=title, sections=[], byline=""), tmp_path, own=True)
    assert "second" in (tmp_path / "report.html").read_text()


def test_a_link_is_followed_only_where_the_user_named_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "report").symlink_to(tmp_path / "there")
    with pytest.raises(Failure) as refused:
        page.write_report(DOCUMENT, tmp_path / "report", own=True)
    assert refused.value.code == ExitCode.SECURITY
    page.write_report(DOCUMENT, tmp_path / "report", own=False)
    assert (tmp_path / "there/report.md").exists()


def test_a_file_behind_a_link_is_left_alone(tmp_path: Path) -> None:
    page.write_report(DOCUMENT, tmp_path / "report", own=True)
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "report/report.md").unlink()
    (tmp_path / "report/report.md").symlink_to(tmp_path / "theirs")
    page.write_report(DOCUMENT, tmp_path / "report", own=True)
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_pictures_of_an_earlier_report_do_not_stay(tmp_path: Path) -> None:
    many = [Picture(name=name, png=PNG, alt="") for name in ("confusion-1", "confusion-3", "curves-loss")]
    page.write_report(
        Report(title="t", sections=[Section(title="s", blocks=many)], byline=""), tmp_path / "r", own=True
    )
    (tmp_path / "r/holiday.png").write_text("theirs")
    few = Report(title="t", sections=[Section(title="s", blocks=many[:1])], byline="")
    page.write_report(few, tmp_path / "r", own=True)
    assert sorted(os.listdir(tmp_path / "r")) == ["confusion-1.png", "holiday.png", "report.html", "report.md"]


@pytest.mark.parametrize(("name", "own"), [("report.md", True), ("thesis.tex", True), ("report.html", False)])
def test_a_folder_of_somebody_else_is_refused_and_nothing_is_changed(tmp_path: Path, name: str, own: bool) -> None:
    (tmp_path / name).write_text("theirs")
    with pytest.raises(Failure, match="holds files that are no report") as refused:
        page.write_report(DOCUMENT, tmp_path, own=own)
    assert (refused.value.code, os.listdir(tmp_path)) == (ExitCode.OUTPUT, [name])
    assert (tmp_path / name).read_text() == "theirs"


def test_other_files_may_stand_beside_a_report_where_the_user_named_the_folder(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text("{}")
    page.write_report(DOCUMENT, tmp_path, own=False)
    assert (tmp_path / "bench.json").read_text() == "{}"


def test_a_place_that_takes_no_files_is_named_with_another_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure) as refused:
        page.write_report(DOCUMENT, tmp_path / "file", own=True)
    assert (refused.value.code, refused.value.fix) == (ExitCode.OUTPUT, page.OUTPUT_FIX)
