"""When a run stops before its end, and why: a signal to any rank, or the deadline on rank 0's clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from train.run import deadline, exit_file
from train.run.job import Job
from train.run.now import Now

T = TypeVar("T")
DEADLINE: Final = exit_file.DEADLINE_CAUSE


def wanted(todo: Job, now: Now, *, evaluation: bool = False) -> bool:
    """Whether this rank alone would stop. evaluation: whether one would come before the save."""
    return now.watch.received is not None or _is_late(todo, now, evaluation=evaluation)


def until_wanted(batches: Iterable[T], todo: Job, now: Now) -> Iterator[T]:
    """The batches of an evaluation, as far as there is time: one may take longer than a scheduler's grace."""
    for batch in batches:
        yield batch
        if wanted(todo, now):
            break


def cause(now: Now) -> str:
    """In one word where this rank knows."""
    if now.watch.received is not None:
        return now.watch.received.name
    return DEADLINE if now.late else "a signal to another rank"


def told(now: Now) -> str:
    """The same for people."""
    return f"the deadline {now.watch.deadline}" if cause(now) == DEADLINE else cause(now)


def note_wanted(todo: Job, now: Now) -> None:
    """`note` a request that has come while a save is waited for: the grace time may end before the wait does."""
    if wanted(todo, now) and not now.noted:
        note(todo, now)


def note(todo: Job, now: Now) -> None:
    """Leave a note that the last save is under way: whoever finds it without an ending knows what was too short."""
    if todo.runtime.is_main and now.unsaved(todo.state) and not (todo.claim and todo.claim.is_lost()):
        exit_file.write_stopping(todo.folder, by=cause(now), save_s=now.times.longest("save"))
    now.noted = True


def _is_late(todo: Job, now: Now, *, evaluation: bool) -> bool:
    """On rank 0: its clock alone counts."""
    limit = now.watch.deadline
    if limit is None or not todo.runtime.is_main:
        return False
    now.late = now.late or limit.at - now.clock() < deadline.needed(now.times, evaluation=evaluation)
    return now.late
