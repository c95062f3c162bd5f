"""Every system call of a checkpoint's commit, failed and killed by strace: what is committed is never lost.

crashpoints.py     all cases; SHARE=2 takes every second one
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import committer
import trials
from processes import unmeasured
from trials import Trial

from entrypoint import Failure
from train import files
from train.checkpoint import store

CALLS = ("mkdir", "openat", "write", "fsync", "close", "rename", "unlink", "unlinkat", "rmdir")
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "ESTALE")
# How strace is to strike in call K: once, or from there on as a full disk does.
FAULTS = {"SIGKILL": "signal=KILL:when={k}"}
FAULTS |= {error: f"error={error}:when={{k}}" for error in ERRORS}
FAULTS |= {f"{error} from there on": f"error={error}:when={{k}}+" for error in ERRORS}
# (step, checkpoints to keep) of the commit; steps 10 and 20 stand there before.
SCENES: Mapping[str, tuple[int, int]] = {
    "a further step": (30, 3),
    "the oldest goes": (30, 2),
    "only the newest stays": (30, 1),
    "the same step again": (20, 3),
}
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One fault in the K-th call of a kind. call: None for none at all."""

    scene: str
    call: str | None = None
    k: int = 0
    fault: str = ""

    @property
    def injector(self) -> str:
        """What strace is told."""
        calls = ",".join(CALLS)
        inject = (f"-einject={self.call}:{FAULTS[self.fault].format(k=self.k)}",) if self.call else ()
        return " ".join((f"-etrace={calls}", *inject))


class Committer:
    """A handle on committer.py."""

    def __init__(self) -> None:
        # Coverage saves what it measured where a process ends, by system calls that are not the commit's.
        self._process = subprocess.Popen(
            [sys.executable, str(Path(committer.__file__))],
            env=unmeasured(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Committer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def committed(self, folder: Path, case: Case) -> tuple[int, str]:
        """(how the commit ended, strace's log of it)."""
        step, keep = SCENES[case.scene]
        child = self._ask({"folder": str(folder), "step": step, "keep": keep})
        log = folder.with_suffix(".strace")
        tracer = subprocess.Popen(
            ["strace", "-f", f"-p{child}", f"-o{log}", *case.injector.split()], stderr=subprocess.PIPE, text=True
        )
        with tracer:
            assert tracer.stderr is not None
            said = tracer.stderr.readline()
            if "attached" not in said:
                raise RuntimeError(f"strace: {said}{tracer.stderr.read()}")
            status = self._ask(None)
            tracer.wait(TIMEOUT_S)
        return status, log.read_text()

    def _ask(self, told: Mapping[str, object] | None) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def begun(place: Path) -> Iterator[Path]:
    """A folder in which steps 10 and 20 are committed."""
    folder = Path(tempfile.mkdtemp(dir=place)) / "checkpoints"
    try:
        for step in (10, 20):
            committer.save(folder, step, keep=2)
        yield folder
    finally:
        shutil.rmtree(folder.parent)


def cases(place: Path) -> Iterator[Case]:
    """Every call that a commit makes, times every fault."""
    with Committer() as process:
        for scene in SCENES:
            with begun(place) as folder:
                status, log = process.committed(folder, Case(scene=scene))
            if status:
                raise RuntimeError(f"the commit without a fault ended with {status}")
            for call, count in _calls(log).items():
                for k in range(1, count + 1):
                    yield from (Case(scene=scene, call=call, k=k, fault=fault) for fault in FAULTS)


def _calls(log: str) -> Counter[str]:
    return Counter(name for name in re.findall(r"^\d+ +(\w+)\(", log, re.M) if name in CALLS)


def trial(case: Case, process: Committer, place: Path) -> Trial:
    """Strike, then look: which checkpoint is there, does the next start sweep, does the next commit work."""
    with begun(place) as folder:
        status, log = process.committed(folder, case)
        wrong = [*_of_the_end(case, status, log), *_of_the_folder(case, status, folder), *_of_the_next(folder)]
    return Trial(
        row=f"{case.scene}: {case.call} {case.k} {case.fault}",
        injector=f"strace {case.injector.split()[-1]}",
        process="the commit",
        expected="the old or the new checkpoint, whole",
        observed=status,
        ok=not wrong,
        lines=wrong,
    )


def _of_the_end(case: Case, status: int, log: str) -> Iterator[str]:
    struck = "(INJECTED)" in log or "killed by SIGKILL" in log
    if not struck:
        yield "strace did not strike"
    if case.fault == "SIGKILL":
        allowed = {-9}
    else:
        number = getattr(errno, case.fault.split()[0])
        allowed = {0, int(files.os_error_failure(OSError(number, ""), Path("/")).code)}
    if status not in allowed:
        yield f"ended with {status}, not {sorted(allowed)}"


def _of_the_folder(case: Case, status: int, folder: Path) -> Iterator[str]:
    step = SCENES[case.scene][0]
    new = {name: _hash(data) for name, data in committer.content(step + 1).items()}
    found = store.newest_checkpoint(folder)
    if found is None:
        yield "no checkpoint is left"
        return
    holds = {name: entry.sha256 for name, entry in found.contents.files.items()}
    old = {name: _hash(data) for name, data in committer.content(20).items()}
    if (found.step, holds) not in ((step, new), (20, old)):
        yield f"found step {found.step} with another content"
    if status == 0 and holds != new:
        yield "reported as committed, and not there"


def _of_the_next(folder: Path) -> Iterator[str]:
    """What the next start does: sweep, take the newest, commit another."""
    before = store.newest_checkpoint(folder)
    store.remove_leftovers(folder)
    after = store.newest_checkpoint(folder)
    if before is None or after is None or before.contents != after.contents:
        yield "sweeping changed what a start would take"
    try:
        committer.save(folder, 40, keep=2)
    except Failure as failure:
        yield f"the next commit failed: {failure}"
    if store.is_valid_checkpoint(folder / store.step_folder_name(40)) is False:
        yield "the next commit is not whole"
    if left := [path.name for path in folder.rglob(".*")]:
        yield f"left behind: {left}"


def _hash(data: bytes) -> str:
    return committer.manifest.make_file_entry(data).sha256


def run(share: int = 1, seed: int = 0, jobs: int = 2) -> Iterator[Trial]:
    """Every `share`-th case, beginning at `seed`, a few at a time."""
    with tempfile.TemporaryDirectory(prefix="crashpoints-") as name:
        place = Path(name)
        chosen = list(cases(place))[seed % share :: share]
        with ThreadPoolExecutor(jobs) as pool:
            for some in pool.map(lambda part: _several(part, place), _dealt(chosen, 4 * jobs)):
                yield from some


def _several(chosen: Sequence[Case], place: Path) -> list[Trial]:
    with Committer() as process:
        return [trial(case, process, place) for case in chosen]


def _dealt(chosen: Sequence[Case], parts: int) -> list[Sequence[Case]]:
    return [part for part in (chosen[at::parts] for at in range(parts)) if part]


def main() -> int:
    """`make crashpoints`."""
    share = int(os.environ.get("SHARE") or 1)
    return trials.run("crashpoints", run(share, jobs=len(os.sched_getaffinity(0))), share=share)


if __name__ == "__main__":
    sys.exit(main())
