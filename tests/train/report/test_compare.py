"""What keeps speeds from being compared is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import make_run

from train.report import compare, read
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
    found = compare.find_differences(two(tmp_path, settings=["optim.lr=0.2", "train.epochs=9"]))
    assert found.alike
    assert not found.differs


@pytest.mark.parametrize("work", ["train.ema_decay=0.99", "train.clip_grad_norm=1.0", "optim.args.foreach=true"])
def test_what_a_step_does_besides_makes_runs_unlike(tmp_path: Path, work: str) -> None:
    runs = two(tmp_path, settings=[work])
    key, _, value = work.removesuffix(".foreach=true").partition("=")
    found = compare.find_differences(runs)
    assert list(found.differs) == ["step options"]
    assert f"{key} {value or 'foreach=true'}" in found.differs["step options"][1]
    assert "not recorded" not in str(found.differs)  # null is a value


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
    found = compare.find_differences(runs)
    assert (list(found.differs), found.alike) == ([name], False)
    caution = compare.incomparable_caution(runs, found)
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
    found = compare.find_differences(two(tmp_path, settings=["train.global_batch_size=512"]))
    assert (found.weak, found.alike, list(found.differs)) == (True, True, ["global batch"])


def test_the_tables_list_what_differs_and_nothing_else(tmp_path: Path) -> None:
    (table,) = compare.difference_tables(two(tmp_path, settings=["optim.lr=0.2"]))
    assert (table.head, table.rows) == (["run", "optim.lr", "world_size"], [["one", "auto", "1"], ["two", "0.2", "2"]])


def test_the_commit_the_image_and_the_hosts_are_among_what_may_differ(tmp_path: Path) -> None:
    runs = two(tmp_path)
    other = {"git": "abc", "image": {"digest": "sha256:1"}, "hosts": ["node02"], "launcher": "torchrun"}
    found = json.loads((tmp_path / "two/run.json").read_text())
    (tmp_path / "two/run.json").write_text(json.dumps(found | other))
    (table,) = compare.difference_tables([runs[0], read.load_run(tmp_path / "two")])
    assert table.rows[1] == ["two", "abc", "node02", "torchrun", "2", "sha256:1"]


def test_equal_counts_of_other_classes_are_other_data(tmp_path: Path) -> None:
    two(tmp_path)
    path = tmp_path / "two/confusion.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"classes": ["lung", "hand", "foot"]}))
    found = compare.find_differences([read.load_run(tmp_path / name) for name in ("one", "two")])
    assert (found.alike, found.differs) == (False, {"classes": ["cat, dog, <b>owl</b>", "lung, hand, foot"]})


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ("micro batch: 64 (one), 32 (two)", {"training": {"micro_batch_size": 32}}),
        ("data.root: data (one), /x (two)", {"settings": ["data.name=folder", "data.root=/x"]}),
    ],
)
def test_what_bears_on_the_speed_of_runs_that_are_alike_is_named(
    tmp_path: Path, said: str, changes: dict[str, Any]
) -> None:
    runs = [
        read.load_run(make_run(tmp_path / "one", settings=changes.get("settings", [])[:1])),
        read.load_run(make_run(tmp_path / "two", **changes)),
    ]
    found = compare.find_differences(runs)
    assert found.alike
    assert compare.speed_cautions(runs, found) == [f"Not the same {said}."]


def of_threads(folder: Path, *devices: str) -> list[RecordedRun]:
    """A run for each, on one more rank than the last."""
    made = [make_run(folder / f"n{at}", ranks=at, training={"device": told}) for at, told in enumerate(devices, 1)]
    return [read.load_run(run) for run in made]


def test_threads_that_follow_from_the_number_of_ranks_are_told_and_refuse_nothing(tmp_path: Path) -> None:
    runs = of_threads(tmp_path, "CPU, 2 threads per rank", "CPU, 1 thread per rank")
    found = compare.find_differences(runs)
    assert found.alike
    (told,) = compare.speed_cautions(runs, found)
    assert told.startswith("Not the same threads per rank: 2 (n1), 1 (n2).")
    assert "OMP_NUM_THREADS=1" in told


def test_as_many_threads_per_rank_are_not_mentioned(tmp_path: Path) -> None:
    runs = of_threads(tmp_path, *["CPU, 1 thread per rank"] * 2)
    assert compare.speed_cautions(runs, compare.find_differences(runs)) == []


def test_a_cpu_beside_a_gpu_is_another_device_and_its_threads_say_nothing(tmp_path: Path) -> None:
    runs = of_threads(tmp_path, "CPU, 2 threads per rank", "NVIDIA H100")
    found = compare.find_differences(runs)
    assert found.differs == {"device": ["CPU", "NVIDIA H100"]}
    assert compare.speed_cautions(runs, found) == []


def test_one_worker_and_sixteen_are_named(tmp_path: Path) -> None:
    workers = ({"training": {"loader": loader}} for loader in ("1 worker", "16 workers"))
    runs = [read.load_run(make_run(tmp_path / name, **one)) for name, one in zip("ab", workers, strict=True)]
    assert compare.speed_cautions(runs, compare.find_differences(runs)) == [
        "Not the same input: 1 worker (a), 16 workers (b)."
    ]


def test_data_of_files_is_told_without_what_only_drawn_data_has(tmp_path: Path) -> None:
    run = read.load_run(make_run(tmp_path / "run", settings=["data.name=folder", "data.samples=10000"]))
    told = compare.MUST_MATCH["data"](run)
    assert "image_size" in told
    assert "samples" not in told
    assert "imbalance" not in told


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
    found = compare.find_differences(two(tmp_path, settings=["train.ema_decay=0.99"]))
    assert found.differs["step options"] == ["defaults", "train.ema_decay 0.99"]


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
