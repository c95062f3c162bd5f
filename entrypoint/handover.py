"""A Handover is what the parent process tells its ranks beside torchrun's variables, in one variable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os.path import commonprefix
from typing import Any, Final

from entrypoint.errors import ExitCode, Failure
from entrypoint.files import parse_json
from entrypoint.world import MAX_DIGITS, TORCHRUN_VARIABLES

HANDOVER_VARIABLE: Final = "ENTRYPOINT_HANDOVER"
# Of their own, because the user's code may read them: the user asks for a device by the first, and the parent sets it
# to the one that was chosen; the second counts the restarts in place.
DEVICE_VARIABLE: Final = "ENTRYPOINT_DEVICE"
ATTEMPT_VARIABLE: Final = "ENTRYPOINT_ATTEMPT"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What all ranks of a task are told of their launch. The defaults are those of a process without a parent."""

    launch_id: str = ""  # the Plan's, and another one for each restart in place
    # Of the process that started the ranks (`current_job_key`); empty outside of a job, None if no parent was ours.
    job: str | None = None
    launcher: str = "unknown"
    hosts: tuple[str, ...] = ()  # in node_rank order; empty if nothing tells them
    ports: tuple[int, ...] = ()  # where rank 0 may listen, in order
    sources: Mapping[str, str] = field(default_factory=dict)  # field of the world -> the variable that it came from
    added: tuple[str, ...] = ()  # variables that the parent set and the user had not
    one_host: bool = False  # all ranks can meet on loopback
    agent_store: bool = False  # torchrun's own store listens on MASTER_PORT
    terminal: bool = False  # the console is one

    def to_environ(self) -> dict[str, str]:
        """The one variable. It may hold 128 KiB, so the hosts are folded."""
        values = asdict(self) | {"version": VERSION, "hosts": _fold(self.hosts)}
        return {HANDOVER_VARIABLE: json.dumps(values)}

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Handover:
        """What `to_environ` wrote; the defaults if nothing did.

        Raises:
            Failure: LAUNCH_CONFLICT for what this version does not write: an earlier one's rank may have submitted
                the job, and handed its variables on.
        """
        text = environ.get(HANDOVER_VARIABLE)
        if not text:
            return cls()
        try:
            values: dict[str, Any] = dict(parse_json(text))
            if values.pop("version") != VERSION:
                raise ValueError("of another version")
            words = [values["launch_id"], values["launcher"], values["job"] or ""]
            if not all(isinstance(word, str) for word in words):
                raise TypeError("no text")
            values |= {"hosts": _unfold(*values["hosts"]), "ports": tuple(map(int, values["ports"]))}
            return cls(**values | {"added": tuple(map(str, values["added"])), "sources": dict(values["sources"])})
        except (ValueError, TypeError, LookupError) as error:
            raise Failure(
                f"{HANDOVER_VARIABLE} is of another version of this program, or set by hand",
                found=f"{HANDOVER_VARIABLE}={text[:200]}",
                fix=f"before submitting, or first in the job script: unset {HANDOVER_VARIABLE} "
                f"{' '.join(TORCHRUN_VARIABLES.values())}",
                code=ExitCode.LAUNCH_CONFLICT,
            ) from error


def _fold(names: Sequence[str]) -> tuple[str, list[tuple[str, str, int]]]:
    """The end that all names share, and (prefix, first number, how many) for each run that counts up before it.

    node07.a.org, node08.a.org is (".a.org", [("node", "07", 2)]).
    """
    end = commonprefix([name[::-1] for name in names])[::-1]  # noqa: RUF071  # of any text
    runs: list[tuple[str, str, int]] = []
    for name in (name.removesuffix(end) for name in names):
        digits = name[len(name.rstrip("0123456789")) :][-MAX_DIGITS:]
        if runs and digits and name == _count_up(*runs[-1]):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((name.removesuffix(digits), digits, 1))
    return end, runs


def _unfold(end: str, runs: Sequence[tuple[str, str, int]]) -> tuple[str, ...]:
    return tuple(_count_up(prefix, first, number) + end for prefix, first, count in runs for number in range(count))


def _count_up(prefix: str, first: str, number: int) -> str:
    """The name that comes `number` names after the first one."""
    return prefix + (str(int(first) + number).zfill(len(first)) if first else "")
