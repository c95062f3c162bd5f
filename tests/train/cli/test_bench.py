"""`train bench`: which parts there are, what they are asked for, and what is kept."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import python, unmeasured

from bench import comm, scaling
from bench.__main__ import CHECKOUT_BENCHES
from bench.estimates import exact
from bench.measurements import Measurement, Row, Target, failed_row, reported_row
from bench.processes import BenchOptions
from entrypoint import ExitCode, Failure
from train.cli import bench, launch

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The command listens to signals: afterwards pytest does again."""
    before = {number: signal.getsignal(number) for number in launch.STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> list[BenchOptions]:
    """What the bench `comm` was asked for, which measures nothing here."""
    asked: list[BenchOptions] = []

    def run(options: BenchOptions) -> Iterator[Measurement]:
        asked.append(options)
        yield reported_row("3a", "w", exact(1.0))

    monkeypatch.setattr(comm, "run", run)
    return asked


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.handle(["comm", "--device", "cpu"], {}) == 0
    assert "| 3a" in capsys.readouterr().out


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    bench.handle(["comm", "--json", "--device", "cpu"], {})
    assert json.loads(capsys.readouterr().out)["rows"][0]["row"] == "3a"


def test_what_is_asked_for_reaches_the_bench(seen: list[BenchOptions]) -> None:
    bench.handle(["comm", "--device", "cpu", "--pairs", "7", "--quick", "optim.lr=1"], {})
    assert (seen[0].pairs, seen[0].quick, seen[0].overrides) == (7, True, ("optim.lr=1",))


def test_output_keeps_the_pictures_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(number="3a", target=Target(what="w", limit=0.98), estimate=exact(1.0))
    monkeypatch.setattr(comm, "run", lambda options: iter([row]))
    bench.handle(["comm", "--device", "cpu", "--output", "kept"], {})
    assert sorted(path.name for path in Path("kept").iterdir()) == ["bench-1.png", "bench.json", "bench.md"]


def test_its_scratch_folder_is_gone_at_the_end(seen: list[BenchOptions]) -> None:
    bench.handle(["comm", "--device", "cpu"], {})
    assert not seen[0].scratch.exists()


def test_a_row_that_went_wrong_is_seen_in_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = failed_row("3a", Failure("gone", fix="", code=ExitCode.PEER), Target(what="w"))
    monkeypatch.setattr(comm, "run", lambda options: iter([wrong, reported_row("3b", "w", exact(1.0))]))
    assert bench.handle(["comm", "--device", "cpu"], {}) == ExitCode.PEER


def test_a_part_whose_peer_ends_is_a_row_that_failed_and_the_next_part_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(options: BenchOptions) -> Iterator[Measurement]:
        yield reported_row("7", "w", exact(5.0))
        raise Failure("gone", found="its log\nlast words", fix="", code=ExitCode.PEER)

    monkeypatch.setattr(scaling, "run", run)
    assert bench.handle(["scaling,comm", "--json", "--device", "cpu"], {}) == ExitCode.PEER
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["row"], row.get("missing")) for row in rows] == [
        ("7", None),
        ("scaling", "gone; its log; last words"),
        ("3a", None),
    ]


def test_what_is_no_fault_of_a_peer_ends_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(options: BenchOptions) -> Iterator[Measurement]:
        raise Failure("numbers came wrong", fix="", code=ExitCode.NODE)

    monkeypatch.setattr(comm, "run", run)
    with pytest.raises(Failure, match="came wrong"):
        bench.handle(["comm", "--device", "cpu"], {})


def test_a_signal_ends_it_tidily_and_what_was_found_is_kept(
    seen: list[BenchOptions], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(options: BenchOptions) -> Iterator[Measurement]:
        seen.append(options)
        yield reported_row("3a", "w", exact(1.0))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(comm, "run", run)
    with pytest.raises(Failure, match="stopped by SIGTERM"):
        bench.handle(["comm", "--device", "cpu", "--output", str(tmp_path)], {})
    assert not seen[0].scratch.exists()
    assert json.loads((tmp_path / "bench.json").read_text())["rows"][0]["row"] == "3a"


def test_files_of_another_time_are_gone_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench.md").write_text("| 99 |")
    monkeypatch.setattr(comm, "run", lambda options: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Failure, match="SIGTERM"):
        bench.handle(["comm", "--device", "cpu", "--output", str(tmp_path)], {})
    assert "99" not in (tmp_path / "bench.md").read_text()


def test_files_are_kept_where_on_cpu(tmp_path: Path) -> None:
    bench.handle(["comm", "--device", "cpu", "--output", str(tmp_path / "new")], {})
    assert json.loads((tmp_path / "new" / "bench.json").read_text())["machine"]["device"] == "cpu"
    assert "| 3a" in (tmp_path / "new" / "bench.md").read_text()


@pytest.mark.slow
def test_what_needs_no_peers_is_measured_by_the_packages_alone(tmp_path: Path) -> None:
    for package in ("entrypoint", "train", "bench"):
        left_out = shutil.ignore_patterns("__pycache__", "peers")
        shutil.copytree(REPOSITORY / package, tmp_path / "site" / package, ignore=left_out)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    small = ("--sizes", "1000", "--micro", "8", "--processes", "1", "train.global_batch_size=8", "data.samples=80")
    words = ("bench", "comm,scaling,sweep", "--quick", "--json", "--device", "cpu", *small)
    done = python("-P", "-m", "train", *words, env=unmeasured() | {"PYTHONPATH": str(tmp_path / "site")}, cwd=elsewhere)
    assert done.returncode == ExitCode.OK, done.stderr
    rows = {row["row"] for row in json.loads(done.stdout)["rows"] if not row.get("missing")}
    assert rows >= {"all-reduce alpha", "14", "recommended"}


@pytest.mark.parametrize("name", [*CHECKOUT_BENCHES, "comm,step"])
def test_a_comparison_with_other_programs_is_refused_and_its_command_named(name: str) -> None:
    with pytest.raises(Failure, match="compares with other programs") as caught:
        bench.handle([name, "--device", "cpu"], {})
    assert caught.value.code == ExitCode.USAGE
    assert f"python -m bench {name}, or make bench" in caught.value.fix
