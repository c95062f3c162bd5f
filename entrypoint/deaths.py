"""How a rank ended becomes what the user reads of it; also where the rank that began it belongs to another task."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from entrypoint.errors import ExitCode, Failure


def starved(who: str) -> Failure:
    """The kernel took it for want of memory."""
    return Failure(
        f"{who} was killed by the kernel: out of host memory",
        fix="ask for more memory (docker run --memory, sbatch --mem), or lower data.workers or train.micro_batch_size",
        code=ExitCode.RESOURCE,
    )


def killed(who: str, signum: int, late_s: float | None = None) -> Failure:
    """It died of a signal. late_s: its own parent's, so long after it was asked to stop."""
    name = signal.Signals(signum).name if signum in set(signal.Signals) else f"signal {signum}"
    hints: dict[int, str] = {
        signal.SIGKILL: "if nobody sent it, the host ran out of memory: ask for more memory or fewer data workers",
        signal.SIGBUS: "shared memory or the image's file system went away: see --shm-size, --ipc=host",
    }
    late = "" if late_s is None else f": still at work {late_s:.0f} s after it was asked to stop"
    hint = "if its saves take so long, raise launch.timeouts.save" if late else hints.get(signum, "see its last lines")
    return Failure(
        f"{who} was killed by {name}{late}",
        fix=f"{hint}; start the same command again to resume",
        code=ExitCode.PEER,
    )


def left_early(who: str, code: int) -> Failure:
    """It said success, or that it had saved, and had not come to the end."""
    return Failure(
        f"{who} left with exit code {code} before its work was done",
        fix="look for sys.exit, os._exit or exec in your own code or a library; start the same command again to resume",
        code=ExitCode.PEER,
    )


def elsewhere(errors: Path, mine: Collection[int]) -> str | None:
    """What ranks of other tasks have left about themselves, in one line; None where there is no cause among it."""
    found = [facts for facts in _left(errors) if facts["rank"] not in mine and _is_a_cause(facts)]
    return f"the cause is on {found[0]['host']}, rank {found[0]['rank']}: {found[0]['what']}" if found else None


def lost_host(errors: Path, mine: Iterable[int], hosts: Iterable[str], address_of: Callable[[str], str]) -> str | None:
    """The host behind the address that a rank of this task lost, where no rank there could say anything."""
    texts = " ".join(str(facts.get("found", "")) for facts in _left(errors) if facts["rank"] in set(mine))
    lost = set(re.findall(r"\[([0-9a-fA-F.:]+)\]:\d+", texts))
    for host in hosts:
        with suppress(Failure):
            if address_of(host) in lost:
                return f"the lost rank is on {host}, from which nothing was heard"
    return None


def _is_a_cause(facts: Mapping[str, Any]) -> bool:
    """Not one that only lost another, or stopped because of it."""
    told = (" was killed by ", " left with exit code ", "sys.exit was called ")
    return facts["code"] not in (ExitCode.PEER, ExitCode.STOPPED) or any(text in facts["what"] for text in told)


def _left(errors: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(errors.glob("rank-*.json")):
        with suppress(OSError, ValueError):
            facts = json.loads(path.read_bytes())
            if isinstance(facts, dict) and {"rank", "host", "code", "what"} <= facts.keys():
                found.append(facts)
    return found
