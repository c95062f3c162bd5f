"""Runs beside each other: speed-up and efficiency where they mean something, and the reason where they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import go_on, history, make_run

from train.report import compare, read
from train.report.compare import ScalingMeasurement
from train.report.document import Paragraph, Picture, Section, Table
from train.report.read import RecordedRun

UNLIKE: dict[str, dict[str, Any]] = {
    "precision": {"training": {"precision": "bf16"}},
    "data": {"settings": ["data.samples=900"]},
    "input": {"training": {"loader": "4 workers"}},
    "model": {"settings": ["model.args.width=8"]},
    "global batch": {"settings": ["train.global_batch_size=128"]},
    "device": {"training": {"device": "NVIDIA H100"}},
    "step options": {"settings": ["train.reproducible=bitwise"]},
}


def two(folder: Path, **changes: Any) -> list[RecordedRun]:
    """A run on one rank and one on two, which differs in `changes` too."""
    first, second = make_run(folder / "one", ranks=1), make_run(folder / "two", ranks=2, **changes)
    return [read.load_run(first), read.load_run(second)]


def test_runs_that_differ_in_their_ranks_alone_are_alike(tmp_path: Path) -> None:
    differences = compare.find_differences(two(tmp_path, settings=["optim.lr=0.2", "train.epochs=9"]))
    assert differences.alike
    assert not differences.differs


@pytest.mark.parametrize("work", ["train.ema_decay=0.99", "train.clip_grad_norm=1.0", "optim.args.foreach=true"])
def test_what_a_step_does_besides_makes_runs_unlike(tmp_path: Path, work: str) -> None:
    runs = two(tmp_path, settings=[work])
    key, _, value = work.removesuffix(".foreach=true").partition("=")
    differences = compare.find_differences(runs)
    assert list(differences.differs) == ["step options"]
    assert f"{key} {value or 'foreach=true'}" in differences.differs["step options"][1]
    assert "not recorded" not in str(differences.differs)  # null is a value


def reading_files(folder: Path, loader: str, *cache: str) -> RecordedRun:
    settings = ["data.name=folder", *cache]
    return read.load_run(make_run(folder, settings=settings, training={"loader": loader}))


@pytest.mark.parametrize(("loader", "alike"), [("4 workers", False), ("memory", True)])
def test_workers_that_decode_are_not_those_that_find_images_decoded(tmp_path: Path, loader: str, alike: bool) -> None:
    runs = [reading_files(tmp_path / "plain", loader), reading_files(tmp_path / "cached", loader, "data.cache=/c")]
    assert list(compare.find_differences(runs).differs) == ([] if alike else ["input"])


def test_where_the_decoded_images_lie_is_no_difference(tmp_path: Path) -> None:
    runs = [reading_files(tmp_path / name, "2 workers", f"data.cache=/{name}") for name in "ab"]
    assert compare.find_differences(runs).alike


@pytest.mark.parametrize(("name", "changes"), UNLIKE.items(), ids=UNLIKE.keys())
def test_what_is_computed_otherwise_is_not_alike(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    runs = two(tmp_path, **changes)
    differences = compare.find_differences(runs)
    assert (list(differences.differs), differences.alike) == ([name], False)
    caution = compare.incomparable_caution(runs, differences)
    assert f"did not compute the same ({name})" in caution.text
    assert [line.partition(": ")[0] for line in caution.more] == [name]


def test_the_precision_in_effect_counts_and_not_what_was_asked_for(tmp_path: Path) -> None:
    runs = two(tmp_path, settings=["train.precision=auto"])
    assert compare.find_differences(runs).alike


def test_what_nobody_recorded_is_not_alike(tmp_path: Path) -> None:
    runs = two(tmp_path, training={"precision": None}, settings=["train.precision=auto"])
    assert compare.find_differences(runs).differs == {"precision": ["fp32", "not recorded"]}


def test_a_setting_that_an_older_version_did_not_know_is_at_its_default(tmp_path: Path) -> None:
    runs = two(tmp_path)
    path = tmp_path / "one/config.yaml"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if "gradient_exchange" not in line))
    assert compare.find_differences([read.load_run(tmp_path / "one"), runs[1]]).alike


def test_a_batch_that_grows_with_the_ranks_is_weak_scaling(tmp_path: Path) -> None:
    differences = compare.find_differences(two(tmp_path, settings=["train.global_batch_size=512"]))
    assert (differences.weak, differences.alike, list(differences.differs)) == (True, True, ["global batch"])


def test_the_tables_list_what_differs_and_nothing_else(tmp_path: Path) -> None:
    (table,) = compare.difference_tables(two(tmp_path, settings=["optim.lr=0.2"]))
    assert (table.head, table.rows) == (["run", "optim.lr", "world_size"], [["one", "auto", "1"], ["two", "0.2", "2"]])


def test_the_commit_the_image_and_the_hosts_are_among_what_may_differ(tmp_path: Path) -> None:
    runs = two(tmp_path)
    other = {"git": "abc", "image": {"digest": "sha256:1"}, "hosts": ["node02"], "launcher": "torchrun"}
    recorded = json.loads((tmp_path / "two/run.json").read_text())
    (tmp_path / "two/run.json").write_text(json.dumps(recorded | other))
    (table,) = compare.difference_tables([runs[0], read.load_run(tmp_path / "two")])
    assert table.rows[1] == ["two", "abc", "node02", "torchrun", "2", "sha256:1"]


def test_equal_counts_of_other_classes_are_other_data(tmp_path: Path) -> None:
    two(tmp_path)
    path = tmp_path / "two/confusion.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"classes": ["lung", "hand", "foot"]}))
    differences = compare.find_differences([read.load_run(tmp_path / name) for name in ("one", "two")])
    assert (differences.alike, differences.differs) == (
        False,
        {"classes": ["cat, dog, <b>owl</b>", "lung, hand, foot"]},
    )


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("micro batch: 64 (one), 32 (two)", {"training": {"micro_batch_size": 32}}),
        ("data.root: data (one), /x (two)", {"settings": ["data.name=folder", "data.root=/x"]}),
    ],
)
def test_what_bears_on_the_speed_of_runs_that_are_alike_is_named(
    tmp_path: Path, text: str, changes: dict[str, Any]
) -> None:
    runs = [
        read.load_run(make_run(tmp_path / "one", settings=changes.get("settings", [])[:1])),
        read.load_run(make_run(tmp_path / "two", **changes)),
    ]
    differences = compare.find_differences(runs)
    assert differences.alike
    assert compare.speed_cautions(runs, differences) == [f"Not the same {text}."]


def of_threads(folder: Path, *devices: str) -> list[RecordedRun]:
    """A run for each, on one more rank than the last."""
    made = [
        make_run(folder / f"n{at}", ranks=at, training={"device": threads}) for at, threads in enumerate(devices, 1)
    ]
    return [read.load_run(run) for run in made]


def test_threads_that_follow_from_the_number_of_ranks_are_told_and_refuse_nothing(tmp_path: Path) -> None:
    runs = of_threads(tmp_path, "CPU, 2 threads per rank", "CPU, 1 thread per rank")
    differences = compare.find_differences(runs)
    assert differences.alike
    (cautions,) = compare.speed_cautions(runs, differences)
    assert cautions.startswith("Not the same threads per rank: 2 (n1), 1 (n2).")
    assert "OMP_NUM_THREADS=1" in cautions


def test_as_many_threads_per_rank_are_not_mentioned(tmp_path: Path) -> None:
    runs = of_threads(tmp_path, *["CPU, 1 thread per rank"] * 2)
    assert compare.speed_cautions(runs, compare.find_differences(runs)) == []


def test_a_cpu_beside_a_gpu_is_another_device_and_its_threads_say_nothing(tmp_path: Path) -> None:
    runs = of_threads(tmp_path, "CPU, 2 threads per rank", "NVIDIA H100")
    differences = compare.find_differences(runs)
    assert differences.differs == {"device": ["CPU", "NVIDIA H100"]}
    assert compare.speed_cautions(runs, differences) == []


def test_one_worker_and_sixteen_are_named(tmp_path: Path) -> None:
    workers = ({"training": {"loader": loader}} for loader in ("1 worker", "16 workers"))
    runs = [read.load_run(make_run(tmp_path / name, **worker)) for name, worker in zip("ab", workers, strict=True)]
    assert compare.speed_cautions(runs, compare.find_differences(runs)) == [
        "Not the same input: 1 worker (a), 16 workers (b)."
    ]


def test_data_of_files_is_told_without_what_only_drawn_data_has(tmp_path: Path) -> None:
    run = read.load_run(make_run(tmp_path / "run", settings=["data.name=folder", "data.samples=10000"]))
    compared = compare.MUST_MATCH["data"](run)
    assert "image_size" in compared
    assert "samples" not in compared
    assert "imbalance" not in compared


def test_a_setting_without_effect_is_no_difference(tmp_path: Path) -> None:
    settings = ["optim.name=adamw"], ["optim.name=adamw", "optim.momentum=0.5"]
    runs = [read.load_run(make_run(tmp_path / str(at), settings=each)) for at, each in enumerate(settings)]
    assert "optim.momentum" not in str(compare.difference_tables(runs))


def test_a_default_beside_a_setting_without_effect_is_no_difference(tmp_path: Path) -> None:
    """optim.momentum is 0.9 with sgd, and says nothing with adamw."""
    runs = [read.load_run(make_run(tmp_path / name, settings=[f"optim.name={name}"])) for name in ("sgd", "adamw")]
    assert list(compare.differing_settings(runs)) == ["optim.name"]
    assert "momentum" not in str(compare.difference_tables(runs))


def test_a_setting_without_effect_beside_one_that_was_set_is_one(tmp_path: Path) -> None:
    words = {"a": ["optim.name=sgd", "optim.momentum=0.5"], "b": ["optim.name=adamw"]}
    runs = [read.load_run(make_run(tmp_path / name, settings=each)) for name, each in words.items()]
    assert compare.differing_settings(runs)["optim.momentum"] == ["0.5", "no effect"]


def test_step_options_at_their_defaults_are_not_listed(tmp_path: Path) -> None:
    differences = compare.find_differences(two(tmp_path, settings=["train.ema_decay=0.99"]))
    assert differences.differs["step options"] == ["defaults", "train.ema_decay 0.99"]


def test_of_many_runs_with_one_value_a_few_are_named(tmp_path: Path) -> None:
    words = [f"train.ema_decay=0.{max(0, at - 9) + 1}" for at in range(15)]
    runs = [read.load_run(make_run(tmp_path / f"run-{at}", settings=[each])) for at, each in enumerate(words)]
    (line,) = compare.incomparable_caution(runs, compare.find_differences(runs)).more
    assert line == (
        "step options: train.ema_decay 0.1 (run-0, run-1, run-2 and 7 more), train.ema_decay 0.2 (run-10), "
        "train.ema_decay 0.3 (run-11) and 3 more"
    )


def test_learning_rates_that_auto_chose_are_no_difference(tmp_path: Path) -> None:
    rates = {"sgd": 0.0078125, "adamw": 0.00027950849718747374}
    words = {name: [f"optim.name={name}", f"optim.lr={rate}"] for name, rate in rates.items()}
    folders = {
        name: make_run(tmp_path / name, settings=each, training={"lr_is_auto": True}) for name, each in words.items()
    }
    folders["typed"] = make_run(tmp_path / "typed", settings=["optim.lr=0.1"], training={"lr_is_auto": False})
    sgd, adamw, typed = map(read.load_run, folders.values())
    assert list(compare.differing_settings([sgd, adamw])) == ["optim.name"]
    assert "lr" not in str(compare.difference_tables([sgd, adamw]))
    assert compare.differing_settings([sgd, typed]) == {"optim.lr": ["auto", "0.1"]}
    assert "lr_is_auto" not in str(compare.difference_tables([sgd, typed]))


def test_a_fold_has_no_share_for_validation(tmp_path: Path) -> None:
    words = ["data.name=folder", "data.root=photos"]
    run = read.load_run(make_run(tmp_path / "run", settings=[*words, "data.fold=1/3"]))
    assert "val_fraction" not in compare.MUST_MATCH["data"](run)
    ordinary = read.load_run(make_run(tmp_path / "ordinary", settings=words))
    assert list(compare.differing_settings([run, ordinary])) == ["data.fold"]


def test_speed_up_is_against_the_fewest_processes() -> None:
    points = [ScalingMeasurement(processes=4, images_per_s=300.0), ScalingMeasurement(processes=1, images_per_s=100.0)]
    scaling = compare.compute_scaling(points)
    assert [(point.processes, point.speed_up, point.efficiency) for point in scaling] == [(1, 1.0, 1.0), (4, 3.0, 0.75)]


def test_efficiency_counts_from_where_the_series_begins() -> None:
    points = [ScalingMeasurement(processes=4, images_per_s=400.0), ScalingMeasurement(processes=16, images_per_s=800.0)]
    assert [point.efficiency for point in compare.compute_scaling(points)] == [1.0, 0.5]


def test_a_spread_becomes_one_of_speed_up() -> None:
    base, four = (
        ScalingMeasurement(processes=1, images_per_s=100.0),
        ScalingMeasurement(processes=4, images_per_s=300.0, low=250, high=350),
    )
    assert [(point.low, point.high) for point in compare.compute_scaling([base, four])] == [
        (1.0, 1.0),
        (2.5, 3.5),
    ]


def test_a_speed_up_that_was_measured_in_turns_counts_as_it_is() -> None:
    points = [
        ScalingMeasurement(processes=1, images_per_s=100.0),
        ScalingMeasurement(processes=2, images_per_s=150.0, speed_up=1.6),
    ]
    assert [(point.speed_up, point.efficiency) for point in compare.compute_scaling(points)] == [
        (1.0, 1.0),
        (1.6, 0.8),
    ]


def test_what_was_not_measured_is_left_out() -> None:
    assert compare.compute_scaling([ScalingMeasurement(processes=2, images_per_s=0.0)]) == []
    assert compare.scaling_panels({"strong": []}) == []


def test_the_panels_show_the_ideal_the_75_percent_line_and_each_series() -> None:
    points = [ScalingMeasurement(processes=2, images_per_s=100.0), ScalingMeasurement(processes=4, images_per_s=150.0)]
    up, share = compare.scaling_panels({"strong": points})
    assert {series.name: list(series.y) for series in up.series} == {
        "ideal": [1.0, 2.0],
        "75% of ideal": [0.75, 1.5],
        "strong": [1.0, 1.5],
    }
    assert [list(series.y) for series in share.series] == [[100, 100], [75, 75], [100, pytest.approx(75)]]
    assert up.y == "speed-up over 2 processes"


def test_dots_at_the_ideal_are_not_cut() -> None:
    _, share = compare.scaling_panels(
        {"strong": [ScalingMeasurement(processes=count, images_per_s=100.0 * count) for count in (1, 2)]}
    )
    assert share.top == pytest.approx(108)


def runs(folder: Path, *speeds: float, **changes: Any) -> list[RecordedRun]:
    """On 1, 2, 4, ... ranks, at these images per second and rank; the last one with changes."""
    made = []
    for at, speed in enumerate(speeds):
        last = changes if at == len(speeds) - 1 else {}
        made.append(read.load_run(make_run(folder / f"r{at}", ranks=2**at, speed=speed, **last)))
    return made


def section(recorded_runs: list[RecordedRun], *, anyway: bool = False) -> Section:
    """Which is there."""
    shown = compare.scaling_section(recorded_runs, compare.find_differences(recorded_runs), anyway=anyway)
    assert shown is not None
    return shown


def test_speed_up_and_efficiency_stand_in_a_picture_and_a_table(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, 600))
    (table,) = (block for block in shown.blocks if isinstance(block, Table))
    assert [row[2:] for row in table.rows] == [["1.00", "1", "100%"], ["1.80", "2", "90%"], ["2.40", "4", "60%"]]
    assert any(isinstance(block, Picture) for block in shown.blocks)
    assert "75% or more of the ideal up to 2 processes, not beyond" in str(shown)


def test_two_numbers_of_processes_are_said_to_be_few(tmp_path: Path) -> None:
    assert "Only 2 numbers of processes" in str(section(runs(tmp_path, 1000, 900)))


def test_more_than_the_ideal_is_not_believed() -> None:
    points = [ScalingMeasurement(processes=1, images_per_s=100.0), ScalingMeasurement(processes=2, images_per_s=300.0)]
    assert "An efficiency of 150%" in str(compare.scaling_blocks({"strong scaling": points}, name="x"))


def test_more_than_the_ideal_gets_no_verdict() -> None:
    points = [ScalingMeasurement(processes=1, images_per_s=100.0), ScalingMeasurement(processes=2, images_per_s=300.0)]
    shown = str(compare.scaling_blocks({"strong scaling": points}, name="x"))
    assert "Strong scaling: no verdict is given: an efficiency of 150%" in shown
    assert "of the ideal up to" not in shown


def test_unlike_numbers_of_threads_get_no_verdict(tmp_path: Path) -> None:
    devices = [{"device": f"CPU, {threads} per rank"} for threads in ("2 threads", "1 thread")]
    recorded_runs = [
        read.load_run(make_run(tmp_path / f"r{ranks}", ranks=ranks, training=device))
        for ranks, device in enumerate(devices, 1)
    ]
    assert "Strong scaling: no verdict is given: not the same threads per rank." in str(section(recorded_runs))
    assert "of the ideal up to" not in str(section(recorded_runs))


def test_a_finished_run_that_is_started_again_keeps_its_ranks_and_its_speed(tmp_path: Path) -> None:
    recorded_runs = runs(tmp_path, 1000, 900)
    go_on(recorded_runs[1].folder, step=20, ranks=1)
    assert [
        point.processes
        for point in compare.scaling_measurements([recorded_runs[0], read.load_run(recorded_runs[1].folder)])
    ] == [
        1,
        2,
    ]


def test_first_steps_are_no_speed_and_the_run_is_named(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, 10_000, events=history(40_000)[:1]))
    assert "r2 is left out: first steps only" in str(shown)
    (table,) = (block for block in shown.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["1", "2"]


def test_runs_without_two_speeds_say_what_is_missing(tmp_path: Path) -> None:
    assert "r1 is left out: no log point" in str(section(runs(tmp_path, 1000, 900, events=[])))


def test_unlike_runs_are_neither_strong_nor_weak_scaling_and_get_no_verdict(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, settings=["train.global_batch_size=300"]), anyway=True)
    assert "trong scaling" not in str(shown)
    assert "of the ideal up to" not in str(shown)


@pytest.mark.parametrize("rates", [[(1, 0.0), (2, 0.0)], [(1, 5.0), (2, 0.0)]])
def test_speeds_of_nothing_are_no_error(rates: list[tuple[int, float]]) -> None:
    points = [ScalingMeasurement(processes=count, images_per_s=rate) for count, rate in rates]
    assert compare.scaling_blocks(
        {"weak scaling": points, "strong scaling": [ScalingMeasurement(processes=1, images_per_s=1)]}, name="x"
    )


def test_a_series_that_is_slow_from_its_first_number_on_is_said_to_be() -> None:
    slow = compare.compute_scaling([ScalingMeasurement(processes=1, images_per_s=10, speed_up=0.5)])
    assert compare.scaling_verdict("weak scaling", slow).startswith("Weak scaling: below 75%")


def test_unlike_runs_get_no_ratio(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, training={"precision": "bf16"}))
    assert all(isinstance(block, Paragraph) for block in shown.blocks)
    assert "--compare-anyway" in str(shown)


def test_who_insists_gets_the_ratio_with_the_caution(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, training={"precision": "bf16"}), anyway=True)
    cautions = [block.text for block in shown.blocks if isinstance(block, Paragraph) and block.caution]
    assert cautions[0] == "Not comparable: not the same precision."
    assert any(isinstance(block, Picture) for block in shown.blocks)


def test_runs_of_the_same_size_are_no_scaling(tmp_path: Path) -> None:
    same = [read.load_run(make_run(tmp_path / name)) for name in ("a", "b")]
    assert compare.scaling_section(same, compare.find_differences(same), anyway=True) is None


def test_several_runs_of_one_size_give_their_median_and_their_whole_spread(tmp_path: Path) -> None:
    same = [read.load_run(make_run(tmp_path / str(rate), ranks=1, speed=rate)) for rate in (10.0, 20.0, 60.0)]
    (point,) = compare.scaling_measurements(same)
    assert (point.images_per_s, point.low, point.high) == (20, 10, 60)


@pytest.mark.parametrize("repeated", [False, True])
def test_the_words_say_what_the_bars_are(tmp_path: Path, repeated: bool) -> None:
    recorded_runs = runs(tmp_path, 1000, 900, 0, events=[])  # the last one is left out
    again = [read.load_run(make_run(tmp_path / "again", ranks=1, speed=950.0))] if repeated else []
    text = str(section([*recorded_runs, *again]).blocks[0])
    assert ("Bars are the quartiles" in text) is not repeated
    assert ("the lowest quartile of any of them to the highest" in text) is repeated
