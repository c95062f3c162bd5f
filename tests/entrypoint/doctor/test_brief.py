"""The short form before each training: what it says, who says it, and what it refuses."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from fake_nvml import FakeGpu, FakeNvml, read_fake
from machines import captured, fake_gpus, machine

from entrypoint.accelerators import nvidia
from entrypoint.doctor import gpu as gpus
from entrypoint.doctor import preflight
from entrypoint.doctor.context import CheckContext, Finding, fail, ok, warn
from entrypoint.doctor.preflight import run_preflight
from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan, plan_allocation

CPU = LaunchOptions(device="cpu")
TIGHT = warn("memory", "little", "ask for more")


def alone() -> Plan:
    return plan_allocation(detect_allocation({}, CPU, machine()), CPU, machine(), {})


def of(situation: str) -> Plan:
    """The plan of one captured task, on node01 or node02."""
    environ = captured(situation)
    here = machine(hostname=situation.rpartition("@")[2])
    return plan_allocation(detect_allocation(environ, CPU, here), CPU, here, environ)


def preflight_lines(planned: Plan, **environ: str) -> tuple[str, ...]:
    return run_preflight(planned, environ, workers=None)


def only(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    """The short form sees this, and nothing of this machine, however long its thread needs to begin."""
    monkeypatch.setattr(preflight, "PREFLIGHT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(preflight, "preflight_checks", lambda scene: {"one": lambda scene: findings})


def test_where_all_is_well_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, ok("memory", "plenty"))
    assert preflight_lines(alone()) == ()


def test_what_is_not_ok_is_said_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, ok("cores", "8"), TIGHT)
    assert preflight_lines(alone()) == ("warn  memory  little", "              fix: ask for more")


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_on_a_terminal_it_is_folded_and_coloured(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool
) -> None:
    only(monkeypatch, warn("memory", "one two three four five six seven eight nine", "more"))
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 50, 0, 0))
    first, second, _ = run_preflight(alone(), variables, workers=None, terminal=theirs)
    os.close(ours)
    os.close(theirs)
    assert ("\x1b" in first, first.endswith("seven"), second.strip()) == (coloured, True, "eight nine")


def test_a_terminal_that_does_not_tell_its_width_folds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, warn("memory", "one two three four five six seven eight nine " * 9, "more"))
    reader, writer = os.pipe()
    lines = run_preflight(alone(), {}, workers=None, terminal=writer)
    os.close(reader)
    os.close(writer)
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("task", "line"),
    [
        ("per-gpu/task-0@node01", "warn  memory  little"),
        ("per-gpu/task-1@node01", None),
        ("per-gpu/task-2@node02", "warn  node02: memory  little"),
        ("per-gpu/task-3@node02", None),
    ],
)
def test_one_task_of_each_node_says_it(monkeypatch: pytest.MonkeyPatch, task: str, line: str | None) -> None:
    only(monkeypatch, TIGHT)
    assert next(iter(preflight_lines(of(task))), None) == line


def test_what_may_still_work_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, fail("memory", "100 MiB", "ask for more"))
    assert preflight_lines(alone())[0] == "FAIL  memory  100 MiB"


@pytest.mark.parametrize(("name", "code"), [("driver", ExitCode.IMAGE_MISMATCH), ("compute mode", ExitCode.NODE)])
def test_what_is_certain_to_fail_is_refused_by_each_task(
    monkeypatch: pytest.MonkeyPatch, name: str, code: ExitCode
) -> None:
    only(monkeypatch, TIGHT, fail(name, "too old", "take another"))
    with pytest.raises(Failure, match="too old") as refused:
        preflight_lines(of("per-gpu/task-3@node02"))
    assert (refused.value.code, refused.value.fix) == (code, "take another")


def test_it_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for_ever = threading.Event()
    monkeypatch.setattr(
        preflight, "preflight_checks", lambda scene: {"places": lambda scene: [warn("x", str(for_ever.wait()), "y")]}
    )
    monkeypatch.setattr(preflight, "PREFLIGHT_TIMEOUT_S", 0.1)
    assert preflight_lines(alone()) == ()
    for_ever.set()


def test_the_limit_is_below_half_a_second() -> None:
    assert preflight.PREFLIGHT_TIMEOUT_S < 0.5


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_a_start_on_gpus_waits_for_seconds(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    limits: list[float] = []
    monkeypatch.setattr(preflight, "run_checks", lambda checks, context, limit_s, late: limits.append(limit_s) or [])
    preflight_lines(replace(alone(), device=device))
    assert [limit_s > 2 for limit_s in limits] == [device == "cuda"]


def test_gpus_are_looked_at_only_where_there_are_some() -> None:
    on_gpus = replace(alone(), device="cuda")
    assert "gpus" not in preflight.preflight_checks(CheckContext(environ={}, plan=alone()))
    assert "gpus" in preflight.preflight_checks(CheckContext(environ={}, plan=on_gpus))


def with_gpus(monkeypatch: pytest.MonkeyPatch, *made_up: FakeGpu, ranks: int, cuda: int = 13_020) -> tuple[str, ...]:
    """What is said on a machine with these made-up GPUs, and a torch for CUDA 13.2."""
    fake = FakeNvml(*made_up, cuda=cuda, apart=True)
    monkeypatch.setattr(nvidia, "import_pynvml", lambda: fake)
    monkeypatch.setattr(gpus.images, "installed_torch_versions", lambda: ("2.15.0", "13.2"))
    monkeypatch.setattr(preflight, "run_checks", lambda checks, scene, limit_s, late: [*checks["gpus"](scene)])
    here, options = machine(gpus=fake_gpus(len(made_up))), LaunchOptions(procs_per_node=ranks)
    planned = plan_allocation(detect_allocation({}, options, here), options, here, {})
    return run_preflight(planned, {}, workers=None)


def test_sound_gpus_need_no_line_though_they_do_not_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_gpus(monkeypatch, FakeGpu(uuid="a"), FakeGpu(uuid="b"), ranks=2) == ()


def test_a_gpu_that_another_program_uses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (line, _) = with_gpus(monkeypatch, FakeGpu(used=40 * 2**30, programs=1), ranks=1)
    assert line.startswith("warn  gpu memory  GPU 0")


def test_memory_that_a_neighbour_task_may_have_taken_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = read_fake(FakeNvml(FakeGpu(used=40 * 2**30, programs=1)))
    monkeypatch.setattr(gpus, "check", lambda scene: gpus.gpu_findings(snapshot, snapshot.gpus))
    shared = replace(alone(), device="cuda", world=replace(alone().world, local_world_size=2, world_size=2))
    names = [finding.name for finding in gpus.preflight(CheckContext(environ={}, plan=shared))]
    assert names == ["gpus"]


def test_a_driver_that_is_too_old_ends_the_start_before_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Failure, match="the driver is too old") as refused:
        with_gpus(monkeypatch, FakeGpu(), ranks=1, cuda=12_080)
    assert refused.value.code == ExitCode.IMAGE_MISMATCH
    assert "make image CUDA=12" in refused.value.fix


def test_a_gpu_that_torch_has_no_code_for_ends_the_start_before_torch_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Failure, match="no code for the compute capability") as refused:
        with_gpus(monkeypatch, FakeGpu(capability=(7, 0)), ranks=1)
    assert refused.value.code == ExitCode.IMAGE_MISMATCH


def test_a_home_that_cannot_be_written_is_said_once_on_each_node(tmp_path: Path) -> None:
    environ = {"HOME": "/nonexistent", "TMPDIR": str(tmp_path)}
    names = [
        [finding.name for finding in preflight.paths.preflight(CheckContext(environ=environ, plan=of(task)))]
        for task in ("per-gpu/task-0@node01", "per-gpu/task-2@node02")
    ]
    assert names == [[], ["home"]]  # the launcher's note tells it for rank 0
