"""Places with one trouble each, made for real on this machine, and the command `entrypoint doctor` run in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import null_gpu
import pytest
from processes import unmeasured

STRANGER = 54_321  # no account has this uid
GROUPS = Path("/sys/fs/cgroup")
# Loaded before `code` changes the user: another one may not be able to read this Python.
MAIN = (
    "import json, os, resource, sys, traceback, entrypoint.__main__ as m; from entrypoint.doctor import examine, report"
)
# What a control group of version 1 and one of version 2 call a limit.
LIMITS = {"memory": ("memory.limit_in_bytes", "memory.max"), "cpu": ("cpu.cfs_quota_us", "cpu.max")}
Finding = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sick:
    """A trouble, and the finding that names it.

    Attributes:
        name, state, words, fix: of the finding; words and fix are a part of what it says.
        shell: run as root before the doctor, with mounts and a host name of its own; `$AT` is a new folder.
        code: Python that runs in the doctor's process before it. before: a program that runs it.
        limit: a control group's kind and limit. options, environ: the doctor's own; `AT` in them is the folder.
    """

    name: str
    state: str
    words: str
    fix: str = ""
    shell: str = ":"
    code: str = "pass"
    before: tuple[str, ...] = ()
    limit: tuple[str, str] | None = None
    options: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    driver: Mapping[str, str] | None = None


def findings(place: Sick, at: Path) -> list[Finding]:
    """All that the doctor says there. Skips the test where this machine makes no such place."""
    if os.geteuid() != 0:
        pytest.skip("machine: mounts, limits and other users need root")
    program = [sys.executable, "-c", f"{MAIN}; {place.code}; sys.exit(m.main(sys.argv[1:]))"]
    device = () if "--device" in place.options else ("--device", "cpu")
    words = [word.replace("AT", str(at)) for word in ("doctor", "--json", *device, *place.options)]
    environ = {"HOME": str(at), **{name: value.replace("AT", str(at)) for name, value in place.environ.items()}}
    if place.driver is not None and (reason := null_gpu.missing()):
        pytest.skip(reason)
    environ |= {} if place.driver is None else null_gpu.driver_environment(**place.driver)
    with control_group(*place.limit) if place.limit else nullcontext("") as enter:
        shell = f'{enter} {place.shell} && exec "$@"'
        command = ["unshare", "--mount", "--uts", "sh", "-c", shell, "sh", *place.before, *program, *words]
        done = subprocess.run(
            command, env={**unmeasured(), "AT": str(at), **environ}, cwd=at, capture_output=True, text=True, timeout=120
        )
    if done.stderr.startswith("unshare"):
        pytest.skip(f"machine: {done.stderr.strip()}")
    assert done.stdout, done.stderr
    found: list[Finding] = json.loads(done.stdout)["findings"]
    assert done.returncode == (78 if any(one["state"] == "fail" for one in found) else 0)
    return found


@contextmanager
def control_group(controller: str, limit: str) -> Iterator[str]:
    """The shell's words to enter a control group that has this limit."""
    first = (GROUPS / controller).is_dir()
    place = (GROUPS / controller if first else GROUPS) / f"doctor-{os.getpid()}"
    try:
        place.mkdir()
        (place / LIMITS[controller][0 if first else 1]).write_text(limit)
    except OSError as error:
        with suppress(OSError):
            place.rmdir()
        pytest.skip(f"machine: no limit of {controller} can be set: {error}")
    try:
        yield f"echo $$ > {place}/cgroup.procs &&"
    finally:
        place.rmdir()


def warns(name: str, words: str, **how: Any) -> Sick:
    """A place of which this is said."""
    return Sick(name=name, state="warn", words=words, **how)


def fails(name: str, words: str, **how: Any) -> Sick:
    """A place in which nobody can train, and this is said of it."""
    return Sick(name=name, state="fail", words=words, **how)


def _tmpfs(at: str, options: str) -> str:
    return f"mount -t tmpfs -o {options} none {at}"


def _read_only(at: str) -> str:
    """What is there stays, and may be this checkout."""
    return f"mount --bind {at} {at} && mount -o remount,bind,ro {at}"


def _calls(names: str, error: str) -> tuple[str, ...]:
    """The kernel refuses these calls."""
    return ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={names}", "-e", f"inject={names}:error={error}")


_BECOME = f"os.setgroups([]); os.setuid({STRANGER})"
_BECOME_NOBODY_ELSE = "os.setgroups([]); os.setuid(10_000_000 + os.getpid())"  # a limit counts all that its user runs
_ANY_DEVICE = ("--device", "auto")
_TWO_RANKS, _NAMED = ("--procs-per-node", "2"), ("--output", "AT")
_FAR = ("--nodes", "2", "--node-rank", "1", "--master-addr")
_EVERYWHERE = " && ".join(_read_only(place) for place in ("/tmp", "/var/tmp", "/dev/shm"))
_LEFT_OUT = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}

PLACES: Mapping[str, Sick] = {
    "no /dev/shm": fails(
        "shared memory",
        "cannot be used",
        shell=f"{_tmpfs('/dev', 'mode=755')} && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9",
    ),
    "a tiny /dev/shm": fails("shared memory", "1 of 1 MiB free", shell=_tmpfs("/dev/shm", "size=1m")),
    "docker's /dev/shm": warns("shared memory", "64 of 64 MiB free", shell=_tmpfs("/dev/shm", "size=64m")),
    "too little memory": fails("memory", "torch alone takes", limit=("memory", str(250 * 2**20))),
    "little memory": warns("memory", "little is left", limit=("memory", str(900 * 2**20))),
    "very few open files": fails("open files", "64 open files", shell="ulimit -n 64"),
    "few open files": warns("open files", "512 open files", shell="ulimit -n 512"),
    "few threads": fails(
        "threads",
        "more threads could be started",
        code=f"resource.setrlimit(resource.RLIMIT_NPROC, (24, 24)); {_BECOME_NOBODY_ELSE}",
    ),
    "one core": warns("cores", "1 of ", code="os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"),
    "half a core's time": warns("cores", "with a quota of 0.5", limit=("cpu", "50000"), options=("--workers", "0")),
    "a thousand data workers": warns("cores", "they take turns", options=("--workers", "1000")),
    "nowhere to write": fails(
        "home", "no temporary folder", shell=f"{_EVERYWHERE} && cd /proc", environ={"HOME": "/proc"}
    ),
    "no home": warns("home", "HOME (/nonexistent) cannot be written", environ={"HOME": "/nonexistent"}),
    "a read-only home": warns("home", "cannot be written", shell=_tmpfs("$AT", "ro")),
    "no TMPDIR": warns("home", "TMPDIR (/nonexistent)", environ={"TMPDIR": "/nonexistent"}),
    "a cache out of reach": warns("caches", "TORCH_HOME=/proc/nothing", environ={"TORCH_HOME": "/proc/nothing"}),
    "a read-only output folder": fails("output", "Read-only file system", shell=_tmpfs("$AT", "ro"), options=_NAMED),
    "a read-only working directory": warns("output", "temporary folder", shell=f"{_tmpfs('$AT', 'ro')} && cd $AT"),
    "another user's output folder": fails(
        "output",
        "Permission denied",
        shell=_tmpfs("/mnt", "mode=755"),
        code=_BECOME,
        options=("--output", "/mnt/runs"),
    ),
    "a full disk": fails(
        "output",
        "No space left",
        fix="more room",
        options=_NAMED,
        shell=f"{_tmpfs('$AT', 'size=1m')} && {{ cat /dev/zero > $AT/ballast 2>/dev/null || true; }}",
    ),
    "almost no space": fails("output", "not enough for a checkpoint", shell=_tmpfs("$AT", "size=50m"), options=_NAMED),
    "little space": warns("output", "enough for small models", shell=_tmpfs("$AT", "size=2g"), options=_NAMED),
    "no more files": fails("output", "has room for only", shell=_tmpfs("$AT", "size=8g,nr_inodes=20"), options=_NAMED),
    "renames that are refused": fails(
        "output",
        "does not rename a file over another one: Operation not supported",
        before=_calls("?rename,?renameat,?renameat2", "EOPNOTSUPP"),
        options=_NAMED,
    ),
    "syncs that fail": fails(
        "output", "does not sync files (fsync): Input/output error", before=_calls("fsync", "EIO"), options=_NAMED
    ),
    "a host without its name": warns(
        "own name", "does not resolve on this host itself", shell="hostname no-such-host.invalid", options=_TWO_RANKS
    ),
    "an interface that is not here": fails(
        "interface", "GLOO_SOCKET_IFNAME=ib0 leaves no", options=_TWO_RANKS, environ={"GLOO_SOCKET_IFNAME": "ib0"}
    ),
    "a master without a name": fails("master", "no-such-host.invalid", options=(*_FAR, "no-such-host.invalid")),
    "GPUs where there are none": fails(
        "plan", "no GPU can be used here", options=("--device", "cuda"), environ={"CUDA_VISIBLE_DEVICES": ""}
    ),
    "no package that counts GPUs": fails(
        "gpus",
        "nvidia-ml-py",
        fix="pip install nvidia-ml-py",
        code="sys.modules['pynvml'] = None",
        options=("--device", "auto"),
    ),
    "a driver of another version": fails(
        "gpus", "NVML error 18", fix="reboot the machine", options=_ANY_DEVICE, driver={"NVML_INIT": "18"}
    ),
    "a container that has lost its GPUs": fails(
        "gpus", "Unknown Error", fix="daemon-reload", options=_ANY_DEVICE, driver={"NVML_INIT": "999"}
    ),
    "no library of the driver": fails(
        "gpus",
        "libnvidia-ml.so.1 does not work",
        fix="--device cpu",
        options=_ANY_DEVICE,
        shell=f"{_tmpfs('/dev', 'mode=755')} && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 "
        "&& mknod -m 666 /dev/nvidia0 c 195 0 && mkdir -m 1777 /dev/shm",
    ),
    "a fabric manager that does not run": fails(
        "cuda", "cuInit returns 802", fix="nvidia-fabricmanager", options=_ANY_DEVICE, driver={"CUDA_INIT": "802"}
    ),
    "half a torchrun set": warns("plan", "LOCAL_WORLD_SIZE is not set", environ=_LEFT_OUT),
    "PYTHONPATH": warns("host python", "PYTHONPATH", environ={"PYTHONPATH": "/somewhere"}),
    "PYTHONHOME": warns("host python", "PYTHONHOME", code="os.environ['PYTHONHOME'] = '/usr'"),
    "packages of the user": warns(
        "host python",
        ".local/lib/python",
        code="os.makedirs(f'{os.environ[\"HOME\"]}/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages')",
    ),
    "a library that is not here": warns(
        "host python", "LD_PRELOAD names files", code="os.environ['LD_PRELOAD'] = '/no/such.so'"
    ),
    "conda's libraries": warns(
        "host python", "points into conda", environ={"CONDA_PREFIX": "/opt/conda", "LD_LIBRARY_PATH": "/opt/conda/lib"}
    ),
    **{
        name: warns("variables", f"{name}={value}: ", environ={name: value})
        for name, value in {
            "ACCELERATE_MIXED_PRECISION": "bf16",
            "ACCELERATE_USE_FSDP": "true",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_IB_DISABLE": "1",
            "OMP_PROC_BIND": "close",
            "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        }.items()
    },
}
