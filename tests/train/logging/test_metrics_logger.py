"""Each step's numbers stand in the record once, and a record that cannot be written stops nothing."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from calls import fail, intercepted
from disks import fill, mounted
from trials import ROOT

from train.logging import metrics_logger
from train.logging import tensorboard as curves
from train.logging.metrics_logger import METRICS_FILE, MetricsLogger, read_events


def opened(
    folder: Path, *, step: int = 0, main: bool = True, tensorboard: bool = False
) -> tuple[MetricsLogger, list[str]]:
    warnings: list[str] = []
    logger = MetricsLogger(folder, main=main, tensorboard=tensorboard, warn=warnings.append, clock=lambda: 5.0)
    logger.open(step=step)
    return logger, warnings


def written(folder: Path, *steps: int, resumed: int = 0) -> list[int]:
    """The steps in the record after a start at `resumed` wrote these."""
    record, warnings = opened(folder, step=resumed)
    for step in steps:
        record.write("train", step=step, loss=float(step))
    record.close()
    assert warnings == []
    return [event["step"] for event in read_events(folder / "metrics.jsonl")]


def test_an_event_is_one_line_of_json(tmp_path: Path) -> None:
    record, _ = opened(tmp_path)
    record.write("train", step=10, loss=0.5, lr=0.1, host="node01")
    line = '{"event": "train", "step": 10, "time": 5.0, "loss": 0.5, "lr": 0.1, "host": "node01"}\n'
    assert (tmp_path / "metrics.jsonl").read_text() == line
    record.close()


GPUS = [(f"node/{number}", {"gpu": f"node/{number}"}, {"power_w": 300.0 + number, "low": ["hot"]}) for number in (0, 1)]


def test_things_that_are_alike_have_a_line_each_and_one_system_call(tmp_path: Path) -> None:
    record, _ = opened(tmp_path)
    calls: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", lambda handle, text: (calls.append(text), len(text))[1])
        record.write_each("gpu", step=10, of=GPUS)
    record.close()
    (text,) = calls
    assert [json.loads(line)["gpu"] for line in text.splitlines()] == ["node/0", "node/1"]


def test_things_that_are_alike_have_curves_by_their_names(tmp_path: Path) -> None:
    record, warnings = opened(tmp_path, tensorboard=True)
    record.write_each("gpu", step=10, of=GPUS)
    record.write_each("rank", step=10, of=[("0", {"rank": 0, "host": "node"}, {"cpu_cores": 1.5})])
    record.close()
    scalar_events = scalars(tmp_path / "tensorboard")
    assert {name: points[0] for name, points in scalar_events.items()} == {
        "usage/gpu/node/0/power_w": (10, 300.0),
        "usage/gpu/node/1/power_w": (10, 301.0),
        "usage/rank/0/cpu_cores": (10, 1.5),
    }
    assert warnings == []


def test_tensorboard_opens_with_accuracy_and_loss(tmp_path: Path) -> None:
    record, _ = opened(tmp_path, tensorboard=True)
    for event in ("checkpoint", "gpu", "rank", "compiled", "usage"):
        record.write(event, step=10, seconds=1.0)
    record.write("train", step=10, loss=0.5, accuracy=0.8, lr=0.1)
    record.write("eval", step=10, accuracy=0.8, loss=0.5)
    record.close()
    groups = [name.partition("/")[0] for name in sorted(scalars(tmp_path / "tensorboard"))]
    assert list(dict.fromkeys(groups)) == ["eval", "train", "usage"]


def test_of_nothing_nothing_is_written(tmp_path: Path) -> None:
    record, warnings = opened(tmp_path, tensorboard=True)
    record.write_each("gpu", step=10, of=[])
    record.close()
    assert ((tmp_path / "metrics.jsonl").read_bytes(), warnings) == (b"", [])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_json_has_no_number_for_becomes_null(tmp_path: Path, value: float) -> None:
    record, warnings = opened(tmp_path, tensorboard=True)
    record.write("train", step=10, loss=value)
    record.close()
    assert [event["loss"] for event in read_events(tmp_path / "metrics.jsonl")] == [None]
    assert warnings == []


def test_another_rank_writes_nothing(tmp_path: Path) -> None:
    record, _ = opened(tmp_path, main=False, tensorboard=True)
    record.write("train", step=10, loss=0.5)
    record.close()
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_appends(tmp_path: Path) -> None:
    written(tmp_path, 10, 20)
    assert written(tmp_path, 30, resumed=20) == [10, 20, 30]


def test_a_resumed_run_drops_the_steps_that_are_computed_again(tmp_path: Path) -> None:
    written(tmp_path, 10, 20, 30)
    assert written(tmp_path, 20, 30, 40, resumed=10) == [10, 20, 30, 40]


def test_a_run_that_starts_anew_drops_all_steps(tmp_path: Path) -> None:
    written(tmp_path, 10, 20)
    assert written(tmp_path, 10) == [10]


@pytest.mark.parametrize("torn", [b'{"event": "train", "st', b"\0\0\0\0", b"\xff\n", b"[1]\n", b'"text"'])
def test_a_line_torn_by_a_kill_is_dropped_and_does_not_spoil_the_next(tmp_path: Path, torn: bytes) -> None:
    written(tmp_path, 10)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    assert written(tmp_path, 20, resumed=10) == [10, 20]
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 2


def bytes_read() -> int:
    """By this process so far, from anywhere."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_start_reads_the_end_of_a_long_record_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    with path.open("w") as file:
        for step in range(1, 40_001):
            file.write(f'{{"event": "train", "step": {step}, "time": 5.0, "loss": 1.0, "filling": "{"x" * 60}"}}\n')
    size, before = path.stat().st_size, bytes_read()
    record, warnings = opened(tmp_path, step=39_990)
    read = bytes_read() - before
    record.write("train", step=39_991)
    record.close()
    assert size > 4_000_000
    assert read < 200_000
    assert warnings == []
    steps = [event["step"] for event in read_events(path)]
    assert steps == list(range(1, 39_992))


@pytest.mark.parametrize("step", range(0, 45, 5))
@pytest.mark.parametrize("is_cut_off", [False, True], ids=["evaluated", "cut off"])
def test_the_lines_that_stay_are_those_of_the_whole_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, is_cut_off: bool
) -> None:
    """An evaluation that was cut off goes, a save that was noted late stays, wherever the end is first looked for."""
    lines: list[dict[str, Any]] = []
    for at in range(5, 45, 5):
        lines += [{"event": name, "step": at} for name in ("train", "gpu", "gpu")]
        lines += [{"event": "eval", "step": at}] if at % 20 == 0 else []
        lines += [{"event": "checkpoint", "step": at - 5}]
    monkeypatch.setattr(metrics_logger, "TAIL_BYTES", 40)
    (tmp_path / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluated = max(0, step - 20) if is_cut_off and step % 20 == 0 else step
    logger = MetricsLogger(tmp_path, main=True, tensorboard=False, warn=pytest.fail)
    logger.open(step=step, evaluated=evaluated)
    logger.close()
    stay = [line for line in lines if line["step"] <= (evaluated if line["event"] == "eval" else step)]
    assert list(read_events(tmp_path / METRICS_FILE)) == stay


def test_a_record_that_cannot_be_trimmed_is_still_appended_to(tmp_path: Path) -> None:
    written(tmp_path, 10)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"torn')
    with intercepted(fail(1, errno.EIO, name="ftruncate")):
        record, _ = opened(tmp_path, step=10)
    record.write("train", step=20)
    record.close()
    assert [event["step"] for event in read_events(tmp_path / "metrics.jsonl")] == [10, 20]


def test_a_full_disk_stops_nothing_is_counted_and_told_once(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        record, warnings = opened(disk)
        ballast = fill(disk)
        for step in range(100):
            record.write("train", step=step, text="x" * 200)
        ballast.unlink()
        record.write("train", step=100)
        record.close()
        steps = [event["step"] for event in read_events(disk / "metrics.jsonl")]
    assert record.lost == 101 - len(steps)
    assert steps[-1] == 100
    assert len(warnings) == 1
    assert "metrics.jsonl is incomplete, training goes on" in warnings[0]


def test_a_full_disk_does_not_stop_tensorboard_from_going_on_later(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        record, warnings = opened(disk, tensorboard=True)
        ballast = fill(disk)
        for step in range(1, 400):
            record.write("train", step=step, loss=float(step))
        ballast.unlink()
        record.write("train", step=400, loss=1.0)
        record.close()
        assert scalars(disk / "tensorboard")["train/loss"][-1] == (400, 1.0)
    assert record.lost > 0
    assert {text.split()[0] for text in warnings} == {"metrics.jsonl", "tensorboard"}


def test_a_folder_that_is_not_there_stops_nothing(tmp_path: Path) -> None:
    record, warnings = opened(tmp_path / "missing")
    record.write("train", step=1)
    record.close()
    assert len(warnings) == 1


def test_a_value_that_is_no_json_stops_nothing(tmp_path: Path) -> None:
    record, warnings = opened(tmp_path)
    record.write("train", step=1, loss=object())
    record.write("train", step=2)
    record.close()
    assert (record.lost, len(warnings)) == (1, 1)
    assert [event["step"] for event in read_events(tmp_path / "metrics.jsonl")] == [2]


def test_a_record_behind_a_link_is_refused_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "theirs")
    record, warnings = opened(tmp_path)
    record.write("train", step=1)
    record.close()
    assert (tmp_path / "theirs").read_text() == ""
    assert "symbolic link" in warnings[0]


def test_closing_twice_is_nothing(tmp_path: Path) -> None:
    record, _ = opened(tmp_path, tensorboard=True)
    record.close()
    record.close()
    record.write("train", step=1)
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_numbers_become_curves_and_texts_do_not(tmp_path: Path) -> None:
    record, warnings = opened(tmp_path, tensorboard=True)
    record.write("train", step=10, loss=0.5, images=256, host="node01", last=True)
    record.write("stop", step=10, cause="SIGTERM")
    record.close()
    assert scalars(tmp_path / "tensorboard") == {"train/loss": [(10, 0.5)], "train/images": [(10, 256.0)]}
    assert warnings == []


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself shows of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    shown.Reload()
    return {tag: [(at.step, at.value) for at in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}


def test_a_disk_that_is_full_from_the_start_stops_nothing(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        (disk / "tensorboard").mkdir()
        fill(disk)
        record, warnings = opened(disk, tensorboard=True)
        record.write("train", step=1, loss=1.0)
        record.close()
    assert sorted(text.split()[0] for text in warnings) == ["metrics.jsonl", "tensorboard"]


def test_a_tensorboard_that_breaks_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "RecordWriter", lambda file: 1 / 0)
    record, warnings = opened(tmp_path, tensorboard=True)
    record.write("train", step=1, loss=1.0)
    record.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] == 1.0
    assert warnings == ["tensorboard is incomplete, training goes on: ZeroDivisionError: division by zero"]


def test_a_whole_file_beside_the_record_is_replaced_by_rank_0_only(tmp_path: Path) -> None:
    for main, text in ((True, "old"), (True, "new"), (False, "other")):
        record, _ = opened(tmp_path, main=main)
        record.replace("note.json", text)
        record.close()
    assert (tmp_path / "note.json").read_text() == "new"


def test_a_file_that_cannot_be_replaced_is_counted_and_said(tmp_path: Path) -> None:
    (tmp_path / "note.json").mkdir()
    record, warnings = opened(tmp_path)
    record.replace("note.json", "text")
    record.close()
    assert (record.lost, len(warnings)) == (1, 1)


def test_a_pipe_in_the_place_of_the_record_is_counted_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    record, warnings = opened(tmp_path, step=10)
    record.write("train", step=20)
    record.close()
    assert (record.lost, len(warnings)) == (1, 1)
    assert "not a regular file" in warnings[0]


def test_an_evaluation_that_is_made_again_stands_there_once(tmp_path: Path) -> None:
    record, _ = opened(tmp_path)
    for event in ("train", "eval"):
        record.write(event, step=10)
    record.close()
    again = MetricsLogger(tmp_path, main=True, tensorboard=False, warn=print)
    again.open(step=10, evaluated=5)
    again.write("eval", step=10)
    again.close()
    assert [event["event"] for event in read_events(tmp_path / "metrics.jsonl")] == ["train", "eval"]


def test_a_line_that_is_nested_too_deep_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    path.write_text('{"step": 1}\n' + "[" * 100_000 + '\n{"step": 2}\n')
    assert [event["step"] for event in read_events(path)] == [1, 2]


def test_the_page_of_the_record_names_each_event_that_is_written() -> None:
    sources = [path.read_text() for path in (ROOT / "train").rglob("*.py")]
    events = {name for text in sources for name in re.findall(r'metrics(?:_logger)?\.write\("(\w+)"', text)}
    assert {"train", "eval", "checkpoint", "usage"} <= events
    page = (ROOT / "docs/monitoring.md").read_text()
    rows = {name for line in re.findall(r"^\| (`.+?`) \|", page, re.M) for name in re.findall(r"`(\w+)`", line)}
    assert events <= rows
