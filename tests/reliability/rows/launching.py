"""Rows of docs/evidence/failures.md about what launchers, machines and users' shells say of themselves."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import null_gpu
from machines import REPOSITORY, captured, fake_gpus, machine
from stage import TINY, TRAIN, Ended, command, start, train, verdict
from trials import Trial

from entrypoint import Failure
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions
from entrypoint.plan import plan_allocation

Row = Callable[[int, Path], Trial]
# A torchrun set; what is changed in it must be refused.
SET = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29411",
}
WRONG = ({"RANK": "2"}, {"RANK": "-1"}, {"RANK": "one"}, {"WORLD_SIZE": "0"}, {"LOCAL_RANK": "5"})
OTHER_USER = 54321


def wrong_set(seed: int, folder: Path) -> Trial:
    """Row 32: before any socket; a rank that is there twice through the store. Late, it alone is refused."""
    if seed % 3 == 0:
        ranks = [command(folder, *TRAIN, *TINY, **(SET | {"RANK": rank, "LOCAL_RANK": rank})) for rank in "011"]
        ended = [one.ended(60) for one in ranks]
        told = max(ended, key=lambda one: one.code == 76)
        others = sorted(one.code for one in ended if one is not told)
        also = {"the others end, or train without it": others == [0, 0] or {*others} <= {69, 75, 76}}
        injector = "RANK=1 in two processes"
        return verdict(told, 76, "rank 1", injector=injector, process="the start", also=also)
    change = WRONG[seed % len(WRONG)]
    ended = command(folder, *TRAIN, "--device", "cpu", *TINY, **(SET | change)).ended(30)
    return verdict(
        ended, 76, next(iter(change)), "fix:", injector=f"env {change}", process="the start", also=early(ended)
    )


def early(ended: Ended) -> dict[str, bool]:
    """A refusal of the parent: no rank has said anything yet."""
    return {"no rank was started": "global batch" not in ended.said and ended.seconds < 15}


def from_slurm(situation: str, change: Mapping[str, str | None], *words: str) -> Row:
    """Rows 33 to 35: a captured environment of a real Slurm, changed."""

    def row(seed: int, folder: Path) -> Trial:
        version = ("slurm-22.05", "slurm-24.11", "slurm-26.05")[seed % 3]
        variables: dict[str, str | None] = {**captured(situation, version), **change}
        ended = command(folder, *TRAIN, "--device", "cpu", *TINY, **variables).ended(30)
        injector = f"{situation} of {version}, {dict(change)}"
        return verdict(ended, 76, *words, "fix:", injector=injector, process="the start", also=early(ended))

    return row


def no_gpu(seed: int, folder: Path) -> Trial:
    """Row 36."""
    value = str(seed % 2)
    ended = command(folder, *TRAIN, "--device", "cuda", *TINY, CUDA_VISIBLE_DEVICES=value).ended(30)
    option = any(word in ended.said for word in ("apptainer exec --nv", "docker run --gpus all"))
    also = {"the engine's option is named": option, **early(ended)}
    words = ("NVML", f"CUDA_VISIBLE_DEVICES={value}")
    return verdict(ended, 78, *words, injector=f"CUDA_VISIBLE_DEVICES={value}", process="the start", also=also)


def too_many_ranks(seed: int, folder: Path) -> Trial:
    """Row 37: the GPUs are names here; the planner is the real one."""
    gpus, ranks = 1 + seed % 4, 5 + seed
    here, options = machine(gpus=fake_gpus(gpus)), LaunchOptions(device="cuda", procs_per_node=ranks)
    try:
        plan_allocation(detect_allocation({}, options, here), options, here, {})
        ended = Ended(code=0, said="planned", seconds=0)
    except Failure as failure:
        ended = Ended(code=int(failure.code), said=str(failure), seconds=0)
    words = (str(gpus), str(ranks), "fix:")
    return verdict(ended, 78, *words, injector="stand-ins for GPUs", process="the plan")


def old_driver(seed: int, folder: Path) -> Trial:
    """Row 38: NVML's library is a stand-in; torch is the installed one, and is not loaded."""
    major = str(470 + 10 * seed)
    found = null_gpu.driver_environment(f"{major}.82.01", 11_040)
    ended = command(folder, *TRAIN, *TINY, **found).ended(30)
    words = (f"driver {major}.82.01 supports CUDA 11.4", "the driver is too old", "fix:", "or newer")
    also = early(ended) | {"nothing is written": not (folder / "runs").exists()}
    return verdict(ended, 72, *words, injector="a stand-in of libnvidia-ml.so.1", process="the start", also=also)


def taken_ports(seed: int, folder: Path) -> Trial:
    """Row 29: the next free port; with none left, an error that names them."""
    with ExitStack() as stack:
        low, taken = _took(stack, 21000 + 40 * seed, 4 if seed % 2 else 2)
        ended = train(folder, ranks=2, ENTRYPOINT_PORT_RANGE=f"{low}-{low + 3}")
    everything = bool(seed % 2)
    words = (str(low), "fix:") if everything else ()
    return verdict(
        ended, 69 if everything else 0, *words, injector=f"{len(taken)} of 4 ports taken", process="the start"
    )


def _took(stack: ExitStack, low: int, count: int) -> tuple[int, range]:
    """So many ports side by side, from `low` on or above: one of another training's may lie among them."""
    for first in range(low, low + 40, 4):
        taken = range(first, first + count)
        with ExitStack() as these, suppress(OSError):
            for port in taken:
                these.enter_context(socket.create_server(("127.0.0.1", port)))
            stack.enter_context(these.pop_all())
            return first, taken
    raise AssertionError(f"no {count} free ports from {low} on")


def no_nvml(seed: int, folder: Path) -> Trial:
    """Row 55: this machine has no NVML at all."""
    ended = train(folder, *TINY, "log.gpu_every_seconds=1", "train.epochs=1")
    return verdict(ended, 0, injector="no library", process="rank 0", folder=folder, kept=4)


def unknown_user(seed: int, folder: Path) -> Trial:
    """Row 56: a uid without an entry in passwd and without a home."""
    folder.chmod(0o777)
    user = (f"--reuid={OTHER_USER + seed}", f"--regid={OTHER_USER}", "--clear-groups")
    reading = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # Python itself may lie in root's home
    before = ("setpriv", *user, *reading)
    started = start(folder, before=before, HOME=None, USER=None, LOGNAME=None)
    return verdict(started.ended(), 0, injector="setpriv --reuid", process="all", folder=folder, kept=8)


def no_home(seed: int, folder: Path) -> Trial:
    """Row 57."""
    homes = ("/nonexistent", None, "/proc")
    ended = train(folder, HOME=homes[seed % 3])
    left = [path.name for path in folder.iterdir() if path.name != "runs" and not path.name.startswith("said-")]
    also = {f"nothing but the run is in the working directory ({left})": not left}
    return verdict(ended, 0, injector=f"HOME={homes[seed % 3]}", process="all", folder=folder, kept=8, also=also)


def plain_locale(seed: int, folder: Path) -> Trial:
    """Row 58: a folder whose name is not ASCII, in a locale that knows nothing else."""
    place = folder / ("Größe", "数据", "été")[seed % 3]
    place.mkdir()
    ended = train(place, LC_ALL=("C", "POSIX")[seed % 2], PYTHONUTF8=None, PYTHONIOENCODING=None, LANG=None)
    return verdict(ended, 0, injector="LC_ALL=C", process="all", folder=place, kept=8)


def leaking_shell(seed: int, folder: Path) -> Trial:
    """Row 68: what a user's shell holds of other Pythons stays out, and is said."""
    evil = folder / "evil"
    evil.mkdir()
    for name in ("torch", "numpy", "yaml"):
        (evil / f"{name}.py").write_text("open('ran', 'w')\nraise SystemExit('evil')\n")
    shutil.copytree(evil, folder / "home/.local/lib" / f"python3.{sys.version_info.minor}" / "site-packages")
    train_here = shutil.which("train", path=str(Path(sys.executable).parent))
    assert train_here
    words = (train_here, "--device", "cpu", *TINY)
    variables = {
        "PYTHONPATH": str(evil),
        "HOME": str(folder / "home"),
        "CONDA_PREFIX": "/opt/conda",
        "PYTHONSTARTUP": str(evil / "torch.py"),
    }
    ended = command(folder, *words, **variables).ended()
    also = {"nothing of it ran": not (folder / "ran").exists()}
    return verdict(
        ended, 0, "PYTHONPATH", injector="export PYTHONPATH=...", process="all", folder=folder, kept=8, also=also
    )


def tampered(seed: int, folder: Path) -> Trial:
    """Row 70: the job scripts start no image that is not signed, where the site wants one. A stand-in for Apptainer
    notes what it is asked and finds no signature; tests/cluster/test_scripts.py asks a real one."""
    (folder / "config.yaml").write_text("")
    (folder / "train.sif").write_bytes(bytes([seed]) * 4096)
    stand_in = folder / "bin" / "apptainer"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$1" >> {folder}/asked\nexit 255\n')
    stand_in.chmod(0o755)
    script = REPOSITORY / "launch" / ("torchrun.sh", "multigpu.sh")[seed % 2]
    environ = {"PATH": f"{stand_in.parent}:/usr/bin:/bin", "REQUIRE_SIGNED": "1", "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        [script, "config.yaml"], cwd=folder, env=environ,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30,
    )  # fmt: skip
    ended = Ended(code=done.returncode, said=done.stdout, seconds=0)
    also = {"nothing in the image ran": (folder / "asked").read_text() == "verify\n"}
    return verdict(ended, 77, "signed", "fix:", injector="byte edit", process=script.name, also=also)


ROWS: Mapping[int, Row] = {
    29: taken_ports,
    32: wrong_set,
    33: from_slurm("per-gpu/task-1@node01", {"SLURM_PROCID": None}, "SLURM_PROCID", "srun"),
    34: from_slurm("per-gpu/task-1@node01", {**SET, "RANK": "0", "WORLD_SIZE": "3"}, "SLURM_", "WORLD_SIZE"),
    35: from_slurm("batch-many-tasks/batch-0@node01", {}, "srun"),
    36: no_gpu,
    37: too_many_ranks,
    38: old_driver,
    55: no_nvml,
    56: unknown_user,
    57: no_home,
    58: plain_locale,
    68: leaking_shell,
    70: tampered,
}
MISSING: Mapping[int, Callable[[], str | None]] = {38: null_gpu.missing}
