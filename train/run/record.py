"""run.json and config.yaml record what ran, where and with what: versions, image, git commit, hosts
and every start.

Each start is recorded as soon as its step is known, so that a job which crashes at the same step
again and again is refused. A requeued job is refused if its run's folder is missing: it must not
silently start at step 0.

The folder may be missing because this node has not mounted it, because the container does not show
it, or because somebody moved it; but also because the earlier start was killed before it created
the folder. Only what is kept elsewhere can tell: each start of a job leaves a marker in the user's
cache folder once it has the run's folder.
"""

from __future__ import annotations

import hashlib
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

from entrypoint import (
    DEADLINE_CAUSE,
    ExitCode,
    ExitRecord,
    Failure,
    RunErrors,
    World,
    file_writer,
    job_info_from_environ,
    redact_words,
)
from train import files
from train.config import load
from train.config.schema import RunConfig
from train.evaluation.results import TEST_FILE
from train.file_lock import LockHolder

PROJECT_ROOT = Path(__file__).resolve().parents[2]
IMAGE_FACTS_FILE = Path("/opt/image.json")  # written when the image is built
# Container engines set one of these to the image or its file.
IMAGE_NAME_VARIABLES = ("ENTRYPOINT_IMAGE", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
IMAGE_DIGEST_VARIABLE = "ENTRYPOINT_IMAGE_DIGEST"  # job scripts set it: an image cannot hold its own digest
GIT_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def image_facts(environ: Mapping[str, str], path: Path = IMAGE_FACTS_FILE) -> dict[str, Any] | None:
    """Return the image's own facts, and its file and digest as its start gave them; None outside an image."""
    facts: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError):
        facts |= json.loads(path.read_bytes())
    names = (environ.get(variable) for variable in IMAGE_NAME_VARIABLES)
    start = {
        "started_from": next(filter(None, names), None),
        "digest": environ.get(IMAGE_DIGEST_VARIABLE),
    }
    return facts | {name: value for name, value in start.items() if value} or None


def git_commit(project: Path = PROJECT_ROOT) -> str | None:
    """Read the checked-out commit's hash from `.git`: the image has no git. None outside a checkout."""
    with suppress(OSError, ValueError):
        git = _git_folder(project / ".git")
        head = (git / "HEAD").read_text().strip()
        return _valid_hash(head) or _resolve_ref(git, head.removeprefix("ref: "))
    return None


def _git_folder(path: Path) -> Path:
    """`.git`, or what it points to in a worktree or submodule."""
    return path.parent / path.read_text().strip().removeprefix("gitdir: ") if path.is_file() else path


def _resolve_ref(git: Path, name: str) -> str | None:
    """Return a branch's hash, loose or packed, from this folder or from the one shared by worktrees."""
    shared = git / "commondir"
    common = git / shared.read_text().strip() if shared.is_file() else git
    for folder in (git, common):
        if (folder / name).is_file():
            return _valid_hash((folder / name).read_text().strip())
    lines = (common / "packed-refs").read_text().splitlines()
    return next((_valid_hash(line.split()[0]) for line in lines if line.endswith(f" {name}")), None)


def _valid_hash(text: str) -> str | None:
    return text if GIT_HASH.fullmatch(text) else None


RUN_FILE, CONFIG_FILE, BEST_FILE = "run.json", "config.yaml", "best.json"
CONFUSION_FILE, BEST_CONFUSION_FILE = "confusion.json", "confusion-best.json"
AUTO_RATE = "lr_is_auto"  # among the facts of the training: config.yaml has the number that `auto` came to
EVALUATION_FILE = "evaluation.json"  # of `train eval RUN --report`
SAMPLES_FILE = "samples.png"  # of `train data show`
PROJECT_PACKAGE = "train-image"
RECORDED_PACKAGES = (PROJECT_PACKAGE, "torch", "torchvision", "accelerate", "safetensors", "numpy")
# checkpoint.resume=never moves these aside, with the configuration and the record of that training.
RESULT_NAMES = (
    "checkpoints",
    BEST_FILE,
    TEST_FILE,
    CONFUSION_FILE,
    BEST_CONFUSION_FILE,
    EVALUATION_FILE,
    SAMPLES_FILE,
    "metrics.jsonl",
    "tensorboard",
    "trackers",
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
    started_at: float,
) -> None:
    """Complete this start's entry in `starts` of `run.json`, which `add_start` may have begun. On rank 0.

    Args:
        step: the step that this start continues from (0: from the start).
        world_size: None for a start that trains nothing because the run is finished.
        started_at: seconds since 1970.

    Raises:
        Failure: as in `files.ERRNO_MEANINGS`.
    """
    ranks = {"idle": True} if world_size is None else {"world_size": world_size}
    start = {"at": format_utc(started_at), "step": step, **ranks, "hosts": [*hosts], "launcher": launcher}
    run = read_run(run_folder) or {}
    starts = run.get("starts", [])
    incomplete = bool(starts) and not {"world_size", "idle"} & starts[-1].keys()
    begun = starts.pop() if incomplete else {}  # by `add_start`, a moment ago
    starts = [*starts, {**begun, **start, **scheduler_job(environ)}]
    files.write_json(run_folder / RUN_FILE, run | {"starts": starts})


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
    """Write the training's facts to `run.json`: this start's replace those of an earlier one. On rank 0.

    Args:
        hosts: one name per node.
        sources: for each fact of the world the variable it came from.
        variables: the caller's environment: variables that act, and variables that were not used.
        training: the values chosen for `auto`, the data and the model; runs are compared by it.

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
        "variables": {use: dict(values) for use, values in variables.items()},
        "starts": (read_run(run_folder) or {}).get("starts", []),
    }
    files.write_json(run_folder / RUN_FILE, {"hosts": [*hosts], "launcher": launcher} | facts)


def read_run(run_folder: Path) -> dict[str, Any] | None:
    """Read `run.json`; None if it is missing or unreadable."""
    try:
        run = files.read_json(run_folder / RUN_FILE)
    except (OSError, ValueError):
        return None
    starts = run.get("starts") if isinstance(run, dict) else None
    return run if isinstance(starts, list) and all(isinstance(start, dict) for start in starts) else None


def package_versions() -> dict[str, str | None]:
    """Versions of Python, this project and its packages; None for what is not installed as a package."""
    return {"python": platform.python_version()} | {name: installed_version(name) for name in RECORDED_PACKAGES}


def move_results_aside(run_folder: Path) -> Path | None:
    """Move an earlier run's results to `before-N/` (checkpoint.resume=never). Return that folder, if any.

    Raises:
        Failure: as in `files.ERRNO_MEANINGS`.
    """
    with files.translate_os_errors(run_folder, "read"):
        names = [name for name in RESULT_NAMES if _is_not_empty(run_folder / name)]
    if not names:
        return None
    folders = (run_folder / f"before-{number}" for number in itertools.count(1))
    target = next(folder for folder in folders if not folder.exists())
    with files.translate_os_errors(target):
        target.mkdir()
        for name in names:
            os.rename(run_folder / name, target / name)
        file_writer.fsync_folder(run_folder)
    return target


def remove_left_files(run_folder: Path) -> list[str]:
    """Remove what killed writers left of the files that a training writes; returns the names.

    Call it on rank 0 of the start that has the lock. What other commands write, perhaps now, stays.
    """
    left = file_writer.left_files(run_folder, {*RESULT_NAMES} - {EVALUATION_FILE, SAMPLES_FILE})
    for path in left:
        files.remove(path)
    return [path.name for path in left]


def _is_not_empty(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def scheduler_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the scheduler's job id and restart count, as run.json keeps them: the same id again is a requeue."""
    job = job_info_from_environ(environ)
    if job is None:
        return {}
    return {"job": job.id} | ({"restart": str(job.restart)} if job.restart else {})


def installed_version(package: str) -> str | None:
    """A package's version; None if it is not installed as a package. Nothing of it is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def format_utc(seconds: float) -> str:
    """A time in seconds since 1970 as an ISO date and time."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


MAX_STARTS_WITHOUT_PROGRESS: Final = 3  # after so many starts of one job from one step, refuse the next
# Finished or stopped: these do not count as starts without progress.
NORMAL_EXIT_CODES: Final = (ExitCode.OK, ExitCode.STOPPED)
UNKNOWN_CAUSE: Final = "no cause told"

StartRecord = Mapping[str, Any]


def add_start(
    run_folder: Path, step: int, *, environ: Mapping[str, str], holder_token: str | None, started_at: float
) -> None:
    """Add this start to `run.json`; refuse the fourth start in a row without progress. On rank 0.

    Args:
        step: the step that it continues from.
        holder_token: `RunLock.token`, the same for all restarts in place of one parent process. run.json calls it
            `launch`, but it is not the launch_id.
        started_at: seconds since 1970.

    Raises:
        Failure: NO_PROGRESS; as in `files.ERRNO_MEANINGS`.
    """
    start = (
        {"at": format_utc(started_at), "step": step}
        | scheduler_job(environ)
        | ({"launch": holder_token} if holder_token else {})
    )
    before = read_starts(run_folder)
    refuse_no_progress(before, start, run_folder)
    _write_starts(run_folder, [*before, start])


def refuse_no_progress(before: Sequence[StartRecord], start: StartRecord, run_folder: Path) -> None:
    """Refuse `start` if the last starts of its job began at the same step and none ended normally.

    A start that died before its step was known counts for every step.

    Raises:
        Failure: NO_PROGRESS.
    """
    last = [other for other in before if not _exited_normally(_start_exit(other))][-MAX_STARTS_WITHOUT_PROGRESS:]
    steps = (start["step"], None)
    same = [other for other in last if _same_job(other, start) and other.get("step") in steps]
    if len(same) < MAX_STARTS_WITHOUT_PROGRESS:
        return
    raise Failure(
        f"no progress: the last {MAX_STARTS_WITHOUT_PROGRESS} starts of this job began at step {start['step']}, "
        "and none committed a later one",
        found="; ".join(f"at {other.get('at')}: {_describe_exit(other)}" for other in same),
        fix=f"mend the cause ({run_folder}/errors, {run_folder}/logs), then start or submit it again: a new job is not "
        "refused, nor is another run.name where the job keeps its name. If nothing but time was short, lower "
        "checkpoint.every_minutes",
        code=ExitCode.NO_PROGRESS,
    )


def is_restart_of_run(run_folder: Path, environ: Mapping[str, str], holder_token: str | None) -> bool:
    """Whether this job or this parent process has started this run before."""
    starts = [start for start in read_starts(run_folder) if start.get("step") is not None]
    if not starts:
        return False
    last, job = starts[-1], scheduler_job(environ)
    same_job = "job" in job and last.get("job") == job["job"]
    info = job_info_from_environ(environ)
    counted = last.get("restart") != job.get("restart")
    requeued = same_job and (counted or (info is not None and info.is_chain))
    return requeued or (holder_token is not None and last.get("launch") == holder_token)


def write_start_exit(run_folder: Path, code: int, me: LockHolder) -> None:
    """Record how this start, or one of its restarts in place, ended. Never fails.

    The process that outlives the ranks calls it while it holds the folder.
    """
    exit_record = RunErrors.in_run(run_folder).read_exit()
    cause = exit_record.cause if exit_record and exit_record.code == code else None
    ended = {"code": int(code), "cause": cause}
    before = read_starts(run_folder)
    with suppress(Failure, OSError, ValueError):
        if before and before[-1].get("launch") == me.token and not _start_exit(before[-1]):
            _write_starts(run_folder, [*before[:-1], {**before[-1], "ended": ended}])
        elif code not in NORMAL_EXIT_CODES:  # it died before its step was known
            job = {"job": me.job, "restart": str(me.restart)} if me.job else {}
            start = {"at": me.since, "step": None, **job, "launch": me.token, "ended": ended}
            _write_starts(run_folder, [*before, start])


def last_training_exit(starts: Sequence[StartRecord], exit_record: ExitRecord | None) -> ExitRecord | None:
    """Return how the last start that trained ended; if none trained, the content of errors/exit.json.

    A start that was refused, or stopped before its step was known, did not end the run. A start that
    found the run finished did: the start that trained may have been killed after the last commit.

    Args:
        starts: all starts, oldest first.
        exit_record: errors/exit.json, which belongs to the last start.
    """
    last_code = exit_record.code if exit_record else None
    trained = [
        start
        for start in starts
        if _ends_the_run(start, last_code if start is starts[-1] else None) and start.get("step") is not None
    ]
    if not trained:
        return exit_record
    ended = _start_exit(trained[-1])
    if exit_record and trained[-1] is starts[-1] and ended.get("code") in (None, exit_record.code):
        return exit_record
    code = ended.get("code")
    return (
        ExitRecord(code=code, step=None, cause=str(ended.get("cause") or UNKNOWN_CAUSE))
        if isinstance(code, int)
        else None
    )


def describe_divergence(path: Path) -> str | None:
    """A caution about the weights of a run that diverged; None for others. path: the run, or its checkpoint."""
    run_folder = path.parents[1] if path.parent.name == "checkpoints" else path
    ending = last_training_exit(read_starts(run_folder), RunErrors.in_run(run_folder).read_exit())
    if ending is None or ending.code != ExitCode.DIVERGED:
        return None
    return (
        f"this run ended with exit code {int(ExitCode.DIVERGED)}: {ending.cause}. Its weights may be useless, those of "
        "earlier checkpoints too. fix: train again under another run.name, with a smaller optim.lr"
    )


def read_starts(run_folder: Path) -> list[dict[str, Any]]:
    """Return all starts so far, oldest first."""
    return [*(read_run(run_folder) or {}).get("starts", [])]  # `read_run` has seen that all are mappings


def _write_starts(run_folder: Path, starts: Sequence[StartRecord]) -> None:
    files.write_json(run_folder / RUN_FILE, (read_run(run_folder) or {}) | {"starts": [*starts]})


def _ends_the_run(start: StartRecord, exit_code: int | None) -> bool:
    """Whether the end of `start` is the run's end. exit_code: of errors/exit.json, if it belongs to `start`."""
    if "world_size" in start:
        return True
    return bool(start.get("idle")) and _start_exit(start).get("code", exit_code) == ExitCode.OK


def _same_job(first: StartRecord, second: StartRecord) -> bool:
    """Whether both belong to one job of the scheduler; without one, to one parent process."""
    key = "job" if second.get("job") else "launch"
    return second.get(key) is not None and first.get(key) == second.get(key)


def _start_exit(start: StartRecord) -> Mapping[str, Any]:
    ended = start.get("ended")
    return ended if isinstance(ended, dict) else {}


def _exited_normally(ended: Mapping[str, Any]) -> bool:
    """Whether it finished or was stopped. A deadline is not normal: the next start has no more time."""
    return ended.get("code") in NORMAL_EXIT_CODES and ended.get("cause") != DEADLINE_CAUSE


def _describe_exit(start: StartRecord) -> str:
    ended = _start_exit(start)
    return f"exit code {ended.get('code')}, {ended.get('cause') or UNKNOWN_CAUSE}" if ended else "it left no word"


REQUEUED_EXIT_CODES: Final = frozenset(code for code in ExitCode if code.requeue)
MARKER_LIFETIME_S: Final = 90 * 86_400.0  # older markers are removed: nobody requeues such a job


def refuse_missing_run(run_folder: Path, environ: Mapping[str, str], *, host: str) -> str | None:
    """Refuse a requeued job whose run is missing. Return a warning if nothing shows whether it is.

    Raises:
        Failure: NO_INPUT, if an earlier start of this job had the folder and it is not here.
    """
    job = job_info_from_environ(environ)
    if job is None or job.restart == 0:
        return None
    if run_folder.is_dir():
        _refuse_without_checkpoints(run_folder)
        return None
    earlier = _read_job_marker(_job_marker_path(run_folder, environ))
    if earlier is None:
        return (
            f"start {job.restart + 1} of this job begins at step 0: "
            f"{run_folder.absolute()} is not there, "
            "and nothing shows that an earlier start had made it. fix: if one had, cancel the job and look for it"
        )
    raise Failure(
        f"the run of this requeued job is not here: it would begin at step 0 again, in {run_folder.absolute()}",
        found=f"no such folder on {host}; an earlier start of the job kept the run in {earlier['folder']} on "
        f"{earlier['host']}",
        expected="the same folder on all nodes that the job may run on",
        fix="mount it on this node or leave the node out (--exclude), bind it (APPTAINER_BIND), or start where it is; "
        "to start over, submit a new job",
        code=ExitCode.NO_INPUT,
    )


def _refuse_without_checkpoints(run_folder: Path) -> None:
    starts = [start for start in read_starts(run_folder) if start.get("step") is not None]
    if starts and not (run_folder / "checkpoints").is_dir():
        raise Failure(
            "the checkpoints of this requeued job are not here: it would begin at step 0 again",
            found=f"{run_folder.absolute()} holds the record of {len(starts)} starts, and no folder checkpoints",
            fix="put the folder checkpoints back; or to start over, submit with checkpoint.resume=never",
            code=ExitCode.NO_INPUT,
        )


def write_job_marker(run_folder: Path, environ: Mapping[str, str], *, host: str, written_at: float) -> None:
    """Record that this job has created its run's folder. Without a cache folder it does nothing.

    Raises:
        Failure: STOPPED, for a signal meanwhile.
    """
    path = _job_marker_path(run_folder, environ)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.iterdir():
            if other.stat().st_mtime < written_at - MARKER_LIFETIME_S:
                files.remove(other)
        files.write_json(path, {"folder": str(run_folder.absolute()), "host": host})
    except OSError:
        return
    except Failure as failure:
        if failure.code == ExitCode.STOPPED:
            raise


def remove_job_marker(run_folder: Path, environ: Mapping[str, str], code: int) -> None:
    """Remove the marker of a job that ended with an exit code that is not requeued."""
    if code not in REQUEUED_EXIT_CODES and (path := _job_marker_path(run_folder, environ)):
        files.remove(path)


def _job_marker_path(run_folder: Path, environ: Mapping[str, str]) -> Path | None:
    """One file for each job and run, in the user's cache folder. None outside a job or without such a folder."""
    job, cache = job_info_from_environ(environ), files.cache_folder(environ)
    if job is None or cache is None:
        return None
    digest = hashlib.sha256(os.fsencode(f"{job.cluster or ''} {run_folder}")).hexdigest()
    name = re.sub(r"[^\w.-]", "_", job.id, flags=re.ASCII)  # HTCondor's is a path
    return cache / "jobs" / f"{name[-100:]}-{digest[:16]}.json"


def _read_job_marker(path: Path | None) -> dict[str, str] | None:
    try:
        marker = files.read_json(path) if path else None
        return {name: str(marker[name]) for name in ("folder", "host")} if marker else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
