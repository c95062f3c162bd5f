"""Numbers are exchanged by real ranks and compared; from the times a line is fitted."""

from __future__ import annotations

from pathlib import Path

import pytest
from benches import by_number, quick
from hypothesis import given
from hypothesis import strategies as st

from bench import comm
from bench.measurements import Measurement, Row, Series
from entrypoint import ExitCode, Failure, LaunchOptions


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Measurement]:
    """Two ranks over gloo, asked for by nobody, two sizes."""
    return list(comm.run(quick(tmp_path_factory.mktemp("comm"), arguments={"sizes": [1000, 100_000]})))


def test_each_operation_has_its_two_numbers(measured: list[Measurement]) -> None:
    names = {f"{name} {letter}" for name in ("all-reduce", "broadcast", "gather") for letter in ("alpha", "beta")}
    assert set(by_number(measured)) == names
    assert {row.facts["ranks"] for row in by_number(measured).values()} == {2}


def test_measured_points_and_their_fit_are_a_plot(measured: list[Measurement]) -> None:
    (series,) = (result for result in measured if isinstance(result, Series))
    assert [x for x, _ in series.lines["all-reduce"]] == [0.001, 0.1]
    assert all(y > 0 for _, y in series.lines["gather"])
    assert set(series.dashed) == {"all-reduce: fit", "broadcast: fit", "gather: fit"}


def test_one_rank_has_nobody_to_talk_to(tmp_path: Path) -> None:
    (row,) = comm.run(quick(tmp_path, launch=LaunchOptions(device="cpu", procs_per_node=1)))
    assert isinstance(row, Row)
    assert row.missing == "needs two ranks: several GPUs, or --procs-per-node 2"


def test_ranks_that_end_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "run_ranks", lambda *_, **__: 78)
    with pytest.raises(Failure, match="exit code 78") as caught:
        list(comm.run(quick(tmp_path)))
    assert caught.value.code == ExitCode.NODE


@given(st.floats(1e-6, 1e-2), st.floats(1e-12, 1e-6))
def test_a_line_is_found_again(alpha: float, beta: float) -> None:
    measured = comm.fit_line([(size, alpha + beta * size) for size in comm.SIZES])
    assert measured == pytest.approx((alpha, beta), rel=1e-3, abs=1e-12)


@pytest.mark.parametrize(
    ("points", "line"),
    [([(1000, 0.5)], (0.5, 0.0)), ([(1, 2.0), (2, 1.0)], (1.2, 0.0)), ([(1, 1.0), (2, 4.0)], (0.0, 1.2))],
    ids=["one size", "less time for more bytes", "no time for no bytes"],
)
def test_neither_number_is_below_0(points: list[tuple[float, float]], line: tuple[float, float]) -> None:
    assert comm.fit_line(points) == pytest.approx(line)
