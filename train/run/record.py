"""run.json and config.yaml record what ran, where and with what: versions, image, git commit, hosts
and every start.

Each start is recorded as soon as its step is known, so that a job which crashes at the same step
again and again is refused.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure, World, job_info_from_environ, redact_words
from train import files
from train.config import load
from train.config.schema import RunConfig
from train.file_lock import LockHolder
from train.run import exit_file
from train.run.exit_file import ExitRecord

PROJECT_ROOT = Path(__file__).resolve().parents[2]
IMAGE_FACTS_FILE = Path("/opt/image.json")  # written when the image is built
# Where a container's engine says which file or image it runs.
IMAGE_NAME_VARIABLES = ("ENTRYPOINT_IMAGE", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
IMAGE_DIGEST_VARIABLE = "ENTRYPOINT_IMAGE_DIGEST"  # an image cannot hold its own: the job scripts say it
GIT_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def image_facts(environ: Mapping[str, str], path: Path = IMAGE_FACTS_FILE) -> dict[str, Any] | None:
    """What the image says about itself, and what its start says (its file, its digest); None outside one."""
    facts: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError):
        facts |= json.loads(path.read_bytes())
    started = next((environ[variable] for variable in IMAGE_NAME_VARIABLES if environ.get(variable)), None)
    said = {"started_from": started, "digest": environ.get(IMAGE_DIGEST_VARIABLE)}
    return facts | {name: value for name, value in said.items() if value} or None


def git_commit(project: Path = PROJECT_ROOT) -> str | None:
    """The checked-out commit's hash, read from `.git` itself: the image has no git. None outside a checkout."""
    with suppress(OSError, ValueError):
        git = _git_folder(project / ".git")
        head = (git / "HEAD").read_text().strip()
        return _valid_hash(head) or _resolve_ref(git, head.removeprefix("ref: "))
    return None


def _git_folder(path: Path) -> Path:
    """`.git`, or what it points to in a worktree or submodule."""
    return path.parent / path.read_text().strip().removeprefix("gitdir: ") if path.is_file() else path


def _resolve_ref(git: Path, name: str) -> str | None:
    """The hash that a branch stands for, loose or packed, in this folder or in the one it shares with others."""
    shared = git / "commondir"
    common = git / shared.read_text().strip() if shared.is_file() else git
    for place in (git, common):
        if (place / name).is_file():
            return _valid_hash((place / name).read_text().strip())
    lines = (common / "packed-refs").read_text().splitlines()
    return next((_valid_hash(line.split()[0]) for line in lines if line.endswith(f" {name}")), None)


def _valid_hash(text: str) -> str | None:
    return text if GIT_HASH.fullmatch(text) else None


RUN_FILE, CONFIG_FILE = "run.json", "config.yaml"
PROJECT_PACKAGE = "train-image"
RECORDED_PACKAGES = (PROJECT_PACKAGE, "torch", "torchvision", "accelerate", "safetensors", "numpy")
# What belongs to a training that is not continued; the configuration and the record of it go with it.
RESULT_NAMES = (
    "checkpoints",
    "best.json",
    "confusion.json",
    "confusion-best.json",
    "metrics.jsonl",
    "tensorboard",
    "profile",
    "report",
    "errors",
    RUN_FILE,
    CONFIG_FILE,
)


def write_config(run_folder: Path, config: RunConfig) -> None:
    """Write `config.yaml`, complete, so that `train --config` of it is the same run. On rank 0.

    Raises:
        Failure: as in `files.ERRNO_MEANINGS`.
    """
    files.write_atomic(run_folder / CONFIG_FILE, load.dump_config(config).encode())


def complete_start(
    run_folder: Path,
    *,
    step: int,
    world_size: int | None,
    hosts: Sequence[str],
    launcher: str,
    environ: Mapping[str, str],
    now: float,
) -> None:
    """Complete the entry of this start in `starts` of `run.json`, where `add_start` has begun one. On rank 0.

    Args:
        step: the step that this start goes on from (0: from the start).
        world_size: None for a start that finds the run finished and trains nothing: its place is not the training's.
        now: seconds since 1970.

    Raises:
        Failure: as in `files.ERRNO_MEANINGS`.
    """
    ranks = {"idle": True} if world_size is None else {"world_size": world_size}
    start = {"at": format_utc(now), "step": step, **ranks, "hosts": [*hosts], "launcher": launcher}
    found = read_run(run_folder) or {}
    before = found.get("starts", [])
    begun = before.pop() if before and not {"world_size", "idle"} & before[-1].keys() else {}  # a moment ago
    files.write_json(run_folder / RUN_FILE, found | {"starts": [*before, {**begun, **start, **scheduler_job(environ)}]})


def write_run(
    run_folder: Path,
    *,
    world: World,
    hosts: Sequence[str],
    launcher: str,
    sources: Mapping[str, str],
    argv: Sequence[str],
    environ: Mapping[str, str],
    variables: Mapping[str, Mapping[str, str]],
    training: Mapping[str, Any],
) -> None:
    """Write what `run.json` says of the training: the facts of this start in place of an earlier one's. On rank 0.

    Args:
        hosts: one name per node; `sources`: for each fact the variable it came from.
        variables: of the caller: those that act, and those that were not used.
        training: what `auto`, the data and the model came to: runs are compared by it.

    Raises:
        Failure: as in `files.ERRNO_MEANINGS`.
    """
    image = image_facts(environ)
    facts = {
        "versions": package_versions(),
        "image": image,
        "git": git_commit() or (image or {}).get("revision"),
        "world": asdict(world),
        "training": dict(training),
        "sources": dict(sources),
        "argv": redact_words(argv),
        "variables": {kind: dict(found) for kind, found in variables.items()},
        "starts": (read_run(run_folder) or {}).get("starts", []),
    }
    files.write_json(run_folder / RUN_FILE, {"hosts": [*hosts], "launcher": launcher} | facts)


def read_run(run_folder: Path) -> dict[str, Any] | None:
    """What `write_run` left; None when there is none or it is unreadable."""
    try:
        found = files.read_json(run_folder / RUN_FILE)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("starts"), list) else None


def package_versions() -> dict[str, str | None]:
    """Python's, this project's and its packages' versions; None for one that is not installed as a package."""
    return {"python": platform.python_version()} | {name: installed_version(name) for name in RECORDED_PACKAGES}


def move_results_aside(run_folder: Path) -> Path | None:
    """Move an earlier run's results to `before-N/` (checkpoint.resume=never); the folder, or None if there were none.

    Raises:
        Failure: as in `files.ERRNO_MEANINGS`.
    """
    with files.translate_os_errors(run_folder, "read"):
        there = [name for name in RESULT_NAMES if _is_not_empty(run_folder / name)]
    if not there:
        return None
    places = (run_folder / f"before-{number}" for number in itertools.count(1))
    place = next(place for place in places if not place.exists())
    with files.translate_os_errors(place):
        place.mkdir()
        for name in there:
            os.rename(run_folder / name, place / name)
        files.fsync_folder(run_folder)
    return place


def _is_not_empty(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def scheduler_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the scheduler's job id and restart count, as run.json keeps them: the same id again is a requeue."""
    job = job_info_from_environ(environ)
    if job is None:
        return {}
    return {"job": job.id} | ({"restart": str(job.restart)} if job.restart else {})


def installed_version(package: str) -> str | None:
    """Its version; None where it is not installed as a package. Nothing of it is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def format_utc(seconds: float) -> str:
    """For people."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


MAX_STARTS_WITHOUT_PROGRESS: Final = 3  # so many starts of one job from one step, and the next one is refused
# Done, or stopped by somebody: no sign of a run that cannot go on.
NORMAL_EXIT_CODES: Final = (ExitCode.OK, ExitCode.STOPPED)
UNKNOWN_CAUSE: Final = "no cause told"

StartRecord = Mapping[str, Any]


def add_start(run_folder: Path, step: int, *, environ: Mapping[str, str], launch: str | None, now: float) -> None:
    """Add this start to the record, unless it is the fourth in a row of a job that gets nowhere. On rank 0.

    Args:
        step: the step that it goes on from; launch: one name for all restarts in place of one parent process.
        now: seconds since 1970.

    Raises:
        Failure: NO_PROGRESS; as in `files.ERRNO_MEANINGS`.
    """
    start = {"at": format_utc(now), "step": step} | scheduler_job(environ) | ({"launch": launch} if launch else {})
    before = read_starts(run_folder)
    refuse_no_progress(before, start, run_folder)
    _write_starts(run_folder, [*before, start])


def refuse_no_progress(before: Sequence[StartRecord], start: StartRecord, run_folder: Path) -> None:
    """Refuse `start` where the last starts of its job began at its step, and none ended in order or committed more.

    One that died before its step was known counts for every step.

    Raises:
        Failure: NO_PROGRESS.
    """
    last = [other for other in before if not _exited_normally(_start_exit(other))][-MAX_STARTS_WITHOUT_PROGRESS:]
    alike = [other for other in last if _same_job(other, start) and other.get("step") in (start["step"], None)]
    if len(alike) < MAX_STARTS_WITHOUT_PROGRESS:
        return
    raise Failure(
        f"no progress: the last {MAX_STARTS_WITHOUT_PROGRESS} starts of this job began at step {start['step']}, "
        "and none committed a later one",
        found="; ".join(f"at {other.get('at')}: {_describe_exit(other)}" for other in alike),
        fix=f"mend the cause ({run_folder}/errors, {run_folder}/logs), then start or submit it anew: a new job is not "
        "refused. If nothing but time was short, lower checkpoint.every_minutes",
        code=ExitCode.NO_PROGRESS,
    )


def is_restart_of_run(run_folder: Path, environ: Mapping[str, str], launch: str | None) -> bool:
    """Whether this start is the next one of a job, or of a parent, that has begun this run already."""
    begun = [other for other in read_starts(run_folder) if other.get("step") is not None]
    if not begun:
        return False
    last, mine = begun[-1], scheduler_job(environ)
    requeued = "job" in mine and last.get("job") == mine["job"] and last.get("restart") != mine.get("restart")
    return requeued or (launch is not None and last.get("launch") == launch)


def write_start_exit(run_folder: Path, code: int, me: LockHolder) -> None:
    """Note how this start, or one of its restarts in place, ended. By the process that outlives the ranks, while it
    holds the folder. Never fails."""
    said = exit_file.read_exit(run_folder)
    ended = {"code": int(code), "cause": said.cause if said and said.code == code else None}
    before = read_starts(run_folder)
    with suppress(Failure, OSError, ValueError):
        if before and before[-1].get("launch") == me.token and not _start_exit(before[-1]):
            _write_starts(run_folder, [*before[:-1], {**before[-1], "ended": ended}])
        elif code not in NORMAL_EXIT_CODES:  # it died before its step was known
            who = {"job": me.job, "restart": str(me.restart)} if me.job else {}
            _write_starts(
                run_folder, [*before, {"at": me.since, "step": None, **who, "launch": me.token, "ended": ended}]
            )


def last_training_exit(starts: Sequence[StartRecord], said: ExitRecord | None) -> ExitRecord | None:
    """How the last start ended that really trained, as far as somebody said so; where none did, what was said last.

    A start that was refused, or stopped before its step was known, ends itself and not the run. One that found the run
    finished, and ended so, says it of the run: whoever trained may have been killed after the last commit.

    Args:
        starts: all, oldest first. said: what stands in errors/exit.json: of the last of them.
    """
    last = said.code if said else None
    tell = [start for start in starts if _ends_the_run(start, last if start is starts[-1] else None)]
    trained = [start for start in tell if start.get("step") is not None]
    if not trained:
        return said
    ended = _start_exit(trained[-1])
    if said is not None and trained[-1] is starts[-1] and ended.get("code") in (None, said.code):
        return said
    code = ended.get("code")
    return (
        ExitRecord(code=code, step=None, cause=str(ended.get("cause") or UNKNOWN_CAUSE))
        if isinstance(code, int)
        else None
    )


def read_starts(run_folder: Path) -> list[dict[str, Any]]:
    """All starts so far, oldest first."""
    starts = (read_run(run_folder) or {}).get("starts", [])
    return [start for start in starts if isinstance(start, dict)]


def _write_starts(run_folder: Path, starts: Sequence[StartRecord]) -> None:
    files.write_json(run_folder / RUN_FILE, (read_run(run_folder) or {}) | {"starts": [*starts]})


def _ends_the_run(start: StartRecord, said: int | None) -> bool:
    """Whether its end is the run's. said: the code in errors/exit.json, where that is this start's."""
    return "world_size" in start or (bool(start.get("idle")) and _start_exit(start).get("code", said) == ExitCode.OK)


def _same_job(one: StartRecord, other: StartRecord) -> bool:
    """The scheduler's job; without one, restarts in place of one parent process."""
    noun = "job" if other.get("job") else "launch"
    return other.get(noun) is not None and one.get(noun) == other.get(noun)


def _start_exit(start: StartRecord) -> Mapping[str, Any]:
    ended = start.get("ended")
    return ended if isinstance(ended, dict) else {}


def _exited_normally(ended: Mapping[str, Any]) -> bool:
    """Not where its own time was up: it is as short next time, and a start that used it came to a later step."""
    return ended.get("code") in NORMAL_EXIT_CODES and ended.get("cause") != exit_file.DEADLINE_CAUSE


def _describe_exit(start: StartRecord) -> str:
    ended = _start_exit(start)
    return f"exit code {ended.get('code')}, {ended.get('cause') or UNKNOWN_CAUSE}" if ended else "it left no word"
