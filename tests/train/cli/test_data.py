"""`train data ...`: which command, with which settings, what it prints, and what comes of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from images import write_classes
from processes import python, unmeasured
from publishing import stand_in

from entrypoint import ExitCode, Failure
from train import __main__ as front
from train.cli import data
from train.config import environment
from train.data import download

CPU = ("--device", "cpu")
TINY = ("data.samples=20", "data.image_size=8")


def test_data_check_tells_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["data", "check", "data.samples=20", "data.image_size=8"], {}) == 0
    shown = capsys.readouterr()
    assert "leakage        none" in shown.out
    assert shown.err == ""


def test_data_check_ends_with_65_for_bad_data_also_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ant=2, bee=2)
    write_classes(tmp_path / "val", ant=1, bee=1)
    (tmp_path / "train/ant/000.png").write_bytes(b"no image")
    assert front.run_command(["data", "check", "--json", "data.name=folder", f"data.root={tmp_path}"], {}) == 65
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ok"] is False
    assert "\n  fix: " in shown.err


def test_data_profile_says_what_limits_a_training_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.data_profile.SECONDS_PER_STAGE", 0.0)
    tiny = ("data.samples=20", "data.image_size=8", "model.args.width=4", "train.global_batch_size=8")
    assert front.run_command(["data", "profile", *CPU, "--procs-per-node", "2", *tiny], {}) == 0
    assert "micro batch 4, on CPU\n" in capsys.readouterr().out


SEEN = """
import os, sys, torch
from pathlib import Path
from entrypoint import ExitCode, Failure
def make(data):
    found = *(os.environ.get(name) for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT")), torch.get_num_threads()
    Path("of-" + Path(sys.argv[0]).stem).write_text(str(found))
    raise Failure("enough is seen", fix="", code=ExitCode.DATA)
"""


def test_data_profile_computes_in_the_environment_of_a_rank(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(SEEN)
    environ = {name: value for name, value in unmeasured().items() if not name.startswith(("OMP_", "GOMP_"))}
    for command in ((), ("data", "profile")):
        words = ("--device", "cpu", "--procs-per-node", "2", "data.name=seen:make", f"run.output_dir={tmp_path}")
        done = python("-m", "train", *command, *words, env=environ, cwd=tmp_path)
        assert done.returncode == ExitCode.DATA, done.stderr
    ours, ranks = ((tmp_path / f"of-{name}").read_text() for name in ("__main__", "worker"))
    assert ours == ranks
    assert environment.GOMP_SPINCOUNT in ours


class Terminal(io.StringIO):
    """A console that a person sees."""

    def isatty(self) -> bool:
        return True


def run(*words: str, as_json: bool = False, console: io.StringIO | None = None) -> data.CommandResult:
    return data.run_command(
        words,
        file=None,
        as_json=as_json,
        console=console or io.StringIO(),
        device_and_ranks=lambda _: ("cpu", 1, 1),
    )


REFUSED = {
    "nothing": ((), 64, "needs a command"),
    "misspelt": (("chek",), 64, "`train data chek` is no command"),
    "a setting first": (("data.samples=3", "check"), 64, "is no command"),
    "an unknown key": (("check", "data.rot=x"), 64, "data.rot"),
    "a wrong value": (("check", "data.samples=-1"), 64, "data.samples"),
    "a word after it": (("check", "all"), 64, "`all`"),
    "a group without files": (("check", "data.group=x"), 64, "data.group"),
    "no such folder": (("check", "data.name=folder", "data.root=none"), 66, "data.root"),
    "no classes": (("check", "data.name=folder", "data.root=."), 66, "data.root"),
    "nothing to fetch": (("fetch",), 64, "data.name synthetic"),
    "a folder to fetch": (("fetch", "data.name=folder"), 64, "data.name folder"),
    "no network": (("fetch", "data.name=mnist", "data.mirror=http://127.0.0.1:9"), 66, "put train-images-idx3"),
    "an unknown name": (("check", "data.name=cifar11"), 64, "data.name"),
}


@pytest.mark.parametrize(("words", "code", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_done_says_how_to_write_it(
    words: tuple[str, ...], code: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failure) as caught:
        run(*words)
    assert caught.value.code == code
    assert text in str(caught.value)
    assert caught.value.fix


def test_fine_data_has_a_report_and_no_failure() -> None:
    printed, failure = run("check", *TINY)
    assert failure is None
    assert "leakage        none" in printed


def test_json_is_one_object() -> None:
    assert json.loads(run("check", *TINY, as_json=True)[0])["ok"] is True


def test_a_profile_is_one_object_too_and_is_of_the_micro_batch_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}
    made = SimpleNamespace(as_json=lambda: '{"limit": "step"}', as_text=lambda: "limit: step")
    monkeypatch.setattr("bench.data_profile.measure_stages", lambda config, **facts: seen.update(facts) or made)
    printed, failure = data.run_command(
        ("profile", "train.global_batch_size=64"),
        file=None,
        as_json=True,
        console=io.StringIO(),
        device_and_ranks=lambda _: ("cpu", 2, 8),
    )
    assert (json.loads(printed), failure) == ({"limit": "step"}, None)
    assert seen == {"config_file": None, "device": "cpu", "ranks": 2, "micro": 8, "world_size": 8}


def test_bad_data_has_a_report_and_a_failure(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ant=2, bee=2)
    write_classes(tmp_path / "val", ant=1, bee=1)
    (tmp_path / "train/ant/000.png").write_bytes(b"no image")
    printed, failure = run("check", "data.name=folder", f"data.root={tmp_path}", "data.image_size=8")
    assert failure is not None
    assert failure.code == 65
    assert "000.png: no image that Pillow knows" in printed


def test_how_far_it_is_is_said_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.data.download.TERMINAL_INTERVAL_S", 0.0)
    piped, seen = io.StringIO(), Terminal()
    run("check", *TINY, console=piped)
    run("check", *TINY, console=seen)
    assert piped.getvalue() == ""
    assert "20 of 20 samples read" in seen.getvalue()
    assert seen.getvalue().endswith("\r\x1b[K")


def test_what_is_there_is_fetched_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, files = stand_in("mnist")
    monkeypatch.setattr(download, "PUBLISHED_ARCHIVES", {"mnist": table})
    for archive in table:
        (tmp_path / archive.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / archive.path).write_bytes(files[archive.name])
    assert run("fetch", "data.name=mnist", f"data.root={tmp_path}") == (f"mnist: whole, in {tmp_path}", None)
