"""What is encoded here is, byte by byte, what TensorBoard's own library writes."""

from __future__ import annotations

import math
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from train.record import eventfile


def written(event: Event) -> bytes:
    file = BytesIO()
    RecordWriter(file).write(event.SerializeToString())
    return file.getvalue()


@pytest.mark.parametrize("now", [1.5e9, -100.0, 0.25])
def test_the_first_records_are_tensorboards_own(now: float) -> None:
    start = Event(wall_time=now, step=301, session_log=SessionLog(status=SessionLog.START))
    assert eventfile.version(now) == written(Event(wall_time=now, file_version="brain.Event:2"))
    assert eventfile.begins(301, now) == written(start)


@given(st.dictionaries(st.text(min_size=1), st.floats(width=32)), st.integers(1, 2**40))
def test_points_are_tensorboards_own(values: dict[str, float], step: int) -> None:
    told = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    ours = eventfile.points(values, step=step, now=2.0)
    theirs = written(Event(wall_time=2.0, step=step, summary=Summary(value=told)))
    assert ours == theirs or any(map(math.isnan, values.values()))  # there are many bits that are no number


def test_what_a_float_of_four_bytes_cannot_hold_is_infinite() -> None:
    assert eventfile.points({"loss": 1e300}, step=1, now=1.0) == eventfile.points({"loss": math.inf}, step=1, now=1.0)
    assert eventfile.points({"loss": -1e300}, step=1, now=1.0) == eventfile.points({"loss": -math.inf}, step=1, now=1.0)
