"""A run has a folder that can be written, and nothing that it writes leaves it through a link."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure, LaunchOptions, Plan, make_plan
from train.config import load
from train.config.schema import RunConfig
from train.run import folder as rundir


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def blocked(here: Path) -> Path:
    """A working folder in which `runs` cannot be made, for root too."""
    (here / "runs").write_text("in the way")
    return here


def plan(spawn: int = 1, **world: int) -> Plan:
    made = make_plan({}, LaunchOptions(device="cpu", procs_per_node=spawn))
    return dataclasses.replace(made, world=dataclasses.replace(made.world, **world))  # type: ignore[arg-type]


def test_the_default_folder_is_runs_and_the_name(here: Path) -> None:
    location = rundir.choose_writable_folder(RunConfig(), plan(), {})
    assert location == rundir.RunLocation(folder=Path("runs/quickstart"))


def test_looking_at_the_place_leaves_only_the_place(here: Path) -> None:
    rundir.choose_writable_folder(RunConfig(), plan(), {})
    assert [path.relative_to(here) for path in here.rglob("*")] == [Path("runs")]


def test_a_default_folder_that_cannot_be_made_gives_way(blocked: Path) -> None:
    location = rundir.choose_writable_folder(RunConfig(), plan(2), {"TMPDIR": str(blocked)})
    assert location.folder.parents[1] == blocked
    assert location.overrides == (f"run.output_dir={location.folder.parent}",)
    assert "-v DIR:" in location.warnings[0]
    assert "--bind" in location.warnings[0]


def test_the_workers_find_the_stand_in(blocked: Path) -> None:
    location = rundir.choose_writable_folder(RunConfig(), plan(), {"TMPDIR": str(blocked)})
    assert rundir.run_folder(load.load_config(None, location.overrides)) == location.folder


def test_a_folder_that_was_asked_for_never_gives_way(blocked: Path) -> None:
    with pytest.raises(Failure, match="runs/mine") as caught:
        rundir.choose_writable_folder(load.load_config(None, ["run.output_dir=runs/mine"]), plan(), {})
    assert caught.value.code == ExitCode.OUTPUT


def test_ranks_that_others_start_would_not_find_a_temporary_folder(blocked: Path) -> None:
    with pytest.raises(Failure) as caught:
        rundir.choose_writable_folder(RunConfig(), plan(1, world_size=2), {})
    assert caught.value.code == ExitCode.OUTPUT


@pytest.mark.parametrize("output", ["runs", "runs/sub"])
def test_a_link_to_a_folder_that_is_not_mounted_never_gives_way(here: Path, output: str) -> None:
    (here / "runs").symlink_to("/scratch/me/runs")
    with pytest.raises(Failure, match="symbolic link to what is not there") as caught:
        rundir.choose_writable_folder(
            load.load_config(None, [f"run.output_dir={output}"]), plan(), {"TMPDIR": str(here)}
        )
    assert (caught.value.code, caught.value.found) == (ExitCode.OUTPUT, f"{here / 'runs'} -> /scratch/me/runs")
    assert caught.value.fix.startswith("mkdir -p /scratch/me/runs,")
    assert [path.name for path in here.iterdir()] == ["runs"]


def test_in_a_container_the_bind_of_a_links_target_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "runs").symlink_to("/scratch/me/runs")
    seen = functools.partial(rundir.unmounted_path_failure, engine="apptainer")
    monkeypatch.setattr(rundir, "unmounted_path_failure", seen)
    with pytest.raises(Failure, match="not visible inside the container") as caught:
        rundir.choose_writable_folder(RunConfig(), plan(), {"TMPDIR": str(here)})
    assert (caught.value.code, "APPTAINER_BIND=/scratch/me/runs" in caught.value.fix) == (ExitCode.OUTPUT, True)


def test_a_link_to_a_folder_that_is_there_is_taken(here: Path) -> None:
    (here / "room").mkdir()
    (here / "runs").symlink_to(here / "room")
    assert rundir.choose_writable_folder(RunConfig(), plan(), {}) == rundir.RunLocation(folder=Path("runs/quickstart"))


def test_looking_says_where_a_link_does_not_lead(here: Path) -> None:
    (here / "runs").symlink_to("/scratch/me/runs")
    assert (
        rundir.describe_folder_state(Path("runs/a")) == f"{here / 'runs'} leads to /scratch/me/runs, which is not there"
    )


@pytest.mark.parametrize("output", ["runs", "named"])
def test_a_folder_that_ends_with_the_container_is_taken_with_a_warning(
    here: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setattr(rundir, "is_ephemeral_path", lambda folder: folder == Path(output))
    location = rundir.choose_writable_folder(load.load_config(None, [f"run.output_dir={output}"]), plan(), {})
    assert (location.folder, location.overrides) == (Path(output, "quickstart"), ())
    assert f"{here / output} is in the container" in location.warnings[0]
    assert f"docker run -v DIR:{here}," in location.warnings[0]


def test_with_no_place_at_all_the_first_one_is_named(blocked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "try_make_temporary_folder", lambda environ: None)
    with pytest.raises(Failure, match="cannot write runs"):
        rundir.choose_writable_folder(RunConfig(), plan(), {})


def test_a_temporary_folder_skips_what_does_not_exist() -> None:
    folder = rundir.try_make_temporary_folder({"TMPDIR": "/no/such/folder"})
    assert folder is not None
    folder.rmdir()


def test_looking_says_new_or_there(here: Path) -> None:
    assert rundir.describe_folder_state(Path("runs/a")) == "new"
    Path("runs/a").mkdir(parents=True)
    assert rundir.describe_folder_state(Path("runs/a")).startswith("exists")


def test_looking_says_what_cannot_be_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert rundir.describe_folder_state(here / "runs/a") == f"{here} cannot be written"


def test_a_scratch_folder_is_new_each_time(tmp_path: Path) -> None:
    first, second = (rundir.make_temporary_folder({"TMPDIR": str(tmp_path)}) for _ in range(2))
    assert first != second
    assert {first.parent, second.parent} == {tmp_path}


def test_without_any_temporary_folder_scratch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "TEMPORARY_PARENTS", (str(tmp_path / "none"),))
    with pytest.raises(Failure, match="temporary folder") as caught:
        rundir.make_temporary_folder({})
    assert caught.value.code == ExitCode.OUTPUT


LINKS = (
    *("checkpoints", "errors", "logs", "report", "tensorboard", "trackers"),
    *("metrics.jsonl", "config.yaml", "run.json", "best.json", "confusion.json", "confusion-best.json"),
    *(".lease.1", "before-1"),
    *("logs/rank-0000.log", "errors/exit.json", "checkpoints/step-00000010", "tensorboard/events.out.tfevents.000000"),
)


@pytest.mark.parametrize("name", LINKS)
def test_a_link_where_a_run_writes_is_refused_by_name(tmp_path: Path, name: str) -> None:
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure) as caught:
        rundir.refuse_symlinks(tmp_path / "run")
    assert caught.value.code == ExitCode.SECURITY
    assert caught.value.found == f"{link} -> {tmp_path / 'elsewhere'}"


def test_the_way_to_the_run_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "run" / "logs").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("scratch")
    (tmp_path / "one").symlink_to("scratch/run")
    rundir.refuse_symlinks(tmp_path / "runs" / "run")
    rundir.refuse_symlinks(tmp_path / "one")


def test_a_users_own_link_beside_the_results_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/somewhere")
    rundir.refuse_symlinks(tmp_path)


@pytest.mark.parametrize("name", ["none", "file"])
def test_a_folder_that_is_not_there_holds_no_links(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    rundir.refuse_symlinks(tmp_path / name)
