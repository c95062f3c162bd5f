"""The starts of a run, kept in run.json: each from the moment its step is known, so that a loop of crashes is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.files import durable
from train.files.lease import Holder
from train.record import exitfile, record
from train.record.exitfile import Ending

IN_VAIN: Final = 3  # so many starts of one job from one step, and the next one is refused
# Done, or stopped by somebody: no sign of a run that cannot go on.
IN_ORDER: Final = (ExitCode.OK, ExitCode.STOPPED)
UNTOLD: Final = "no cause told"

Start = Mapping[str, Any]


def begin(run_folder: Path, step: int, *, environ: Mapping[str, str], launch: str | None, now: float) -> None:
    """Add this start to the record, unless it is the fourth in a row of a job that gets nowhere. On rank 0.

    Args:
        step: the step that it goes on from; launch: one name for all restarts in place of one parent process.
        now: seconds since 1970.

    Raises:
        Failure: NO_PROGRESS; as in `refusals.MEANING`.
    """
    start = {"at": record.utc(now), "step": step} | record.job(environ) | ({"launch": launch} if launch else {})
    before = known(run_folder)
    refuse_in_vain(before, start, run_folder)
    _write(run_folder, [*before, start])


def refuse_in_vain(before: Sequence[Start], start: Start, run_folder: Path) -> None:
    """Refuse `start` where the last starts of its job began at its step, and none ended in order or committed more.

    One that died before its step was known counts for every step.

    Raises:
        Failure: NO_PROGRESS.
    """
    last = [other for other in before if not _in_order(_ended(other))][-IN_VAIN:]
    alike = [other for other in last if _same_job(other, start) and other.get("step") in (start["step"], None)]
    if len(alike) < IN_VAIN:
        return
    raise Failure(
        f"no progress: the last {IN_VAIN} starts of this job began at step {start['step']}, and none committed a later "
        "one",
        found="; ".join(f"at {other.get('at')}: {_told(other)}" for other in alike),
        fix=f"mend the cause ({run_folder}/errors, {run_folder}/logs), then start or submit it anew: a new job is not "
        "refused. If nothing but time was short, lower checkpoint.every_minutes",
        code=ExitCode.NO_PROGRESS,
    )


def goes_on(run_folder: Path, environ: Mapping[str, str], launch: str | None) -> bool:
    """Whether this start is the next one of a job, or of a parent, that has begun this run already."""
    begun = [other for other in known(run_folder) if other.get("step") is not None]
    if not begun:
        return False
    last, mine = begun[-1], record.job(environ)
    requeued = "job" in mine and last.get("job") == mine["job"] and last.get("restart") != mine.get("restart")
    return requeued or (launch is not None and last.get("launch") == launch)


def end(run_folder: Path, code: int, me: Holder) -> None:
    """Note how this start, or one of its restarts in place, ended. By the process that outlives the ranks, while it
    holds the folder. Never fails."""
    said = exitfile.read(run_folder)
    ended = {"code": int(code), "cause": said.cause if said and said.code == code else None}
    before = known(run_folder)
    with suppress(Failure, OSError, ValueError):
        if before and before[-1].get("launch") == me.token and not _ended(before[-1]):
            _write(run_folder, [*before[:-1], {**before[-1], "ended": ended}])
        elif code not in IN_ORDER:  # it died before its step was known
            who = {"job": me.job, "restart": str(me.restart)} if me.job else {}
            _write(run_folder, [*before, {"at": me.since, "step": None, **who, "launch": me.token, "ended": ended}])


def of_the_training(starts: Sequence[Start], said: Ending | None) -> Ending | None:
    """How the last start ended that really trained, as far as somebody said so; where none did, what was said last.

    A start that was refused, or stopped before its step was known, ends itself and not the run. One that found the run
    finished, and ended so, says it of the run: whoever trained may have been killed after the last commit.

    Args:
        starts: all, oldest first. said: what stands in errors/exit.json: of the last of them.
    """
    last = said.code if said else None
    tell = [start for start in starts if _tells(start, last if start is starts[-1] else None)]
    trained = [start for start in tell if start.get("step") is not None]
    if not trained:
        return said
    ended = _ended(trained[-1])
    if said is not None and trained[-1] is starts[-1] and ended.get("code") in (None, said.code):
        return said
    code = ended.get("code")
    return Ending(code=code, step=None, cause=str(ended.get("cause") or UNTOLD)) if isinstance(code, int) else None


def known(run_folder: Path) -> list[dict[str, Any]]:
    """All starts so far, oldest first."""
    starts = (record.read_run(run_folder) or {}).get("starts", [])
    return [start for start in starts if isinstance(start, dict)]


def _write(run_folder: Path, starts: Sequence[Start]) -> None:
    durable.write_json(run_folder / record.RUN, (record.read_run(run_folder) or {}) | {"starts": [*starts]})


def _tells(start: Start, said: int | None) -> bool:
    """Whether its end is the run's. said: the code in errors/exit.json, where that is this start's."""
    return "world_size" in start or (bool(start.get("idle")) and _ended(start).get("code", said) == ExitCode.OK)


def _same_job(one: Start, other: Start) -> bool:
    """The scheduler's job; without one, restarts in place of one parent process."""
    noun = "job" if other.get("job") else "launch"
    return other.get(noun) is not None and one.get(noun) == other.get(noun)


def _ended(start: Start) -> Mapping[str, Any]:
    ended = start.get("ended")
    return ended if isinstance(ended, dict) else {}


def _in_order(ended: Mapping[str, Any]) -> bool:
    """Not where its own time was up: it is as short next time, and a start that used it came to a later step."""
    return ended.get("code") in IN_ORDER and ended.get("cause") != exitfile.DEADLINE


def _told(start: Start) -> str:
    ended = _ended(start)
    return f"exit code {ended.get('code')}, {ended.get('cause') or UNTOLD}" if ended else "it left no word"
