"""Who is there: every rank signs into the store that all share, and rank by rank they must agree about the world."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from torch import distributed as dist

from entrypoint import ExitCode, Failure, World

_REFUSED = "train/refused"  # why a rank refused to take part, for those that would wait for it
_LOOK_S = 1.0  # between looks at what else may have happened, while ranks are missing
# After the deadline a rank waits so much longer for one of its own host: if that one is alive but silent, their parents
# find the hang first (entrypoint.hang), and say more of it.
NEIGHBOUR_S: Final = 60.0


def sign(store: dist.Store, world: World, gpu: str) -> None:
    """Say that this rank is there, and with which GPU (its UUID, empty on the CPU).

    Raises:
        Failure: FACTS for a rank that is there twice, or ranks that disagree about the size of the world.
    """
    me = {"host": socket.gethostname(), "pid": os.getpid(), "gpu": gpu, "world_size": world.world_size}
    first = json.loads(store.compare_set("train/first", "", json.dumps(me | {"rank": world.rank})))
    if first["world_size"] != world.world_size:
        raise _disagree(first["rank"], first, world)
    mine = json.dumps(me | {"id": str(uuid.uuid4())})  # pids repeat over containers
    winner = store.compare_set(f"train/who/{world.rank}", "", mine).decode()
    if winner != mine:
        other = json.loads(winner)
        raise twice(world.rank, f"{other['host']} pid {other['pid']} and {me['host']} pid {me['pid']}")


def is_neighbour(rank: int, world: World) -> bool:
    """Whether that rank is on this rank's host, where ranks are numbered host by host."""
    return rank // world.local_world_size == world.rank // world.local_world_size


def wait_for_all(
    store: dist.Store, world: World, deadline: float, look: Callable[[], None], hosts: Sequence[str] = ()
) -> list[dict[str, object]]:
    """What each rank has signed, once all have.

    Args:
        deadline: by time.monotonic; NEIGHBOUR_S later for ranks of this host.
        look: called about once per second while ranks are missing; may raise.
        hosts: of all ranks, where they are known.

    Raises:
        Failure: PEER at the deadline or where the store is gone, FACTS where a rank refused to take part.
    """
    keys = [f"train/who/{rank}" for rank in range(world.world_size)]
    while True:
        left = deadline - time.monotonic()
        try:
            store.wait(keys, timedelta(seconds=left if 0.1 < left < _LOOK_S else _LOOK_S))
            return [json.loads(value) for value in store.multi_get(keys)]
        except (dist.DistError, RuntimeError) as error:
            refused = _has(store, _REFUSED)
            if refused:
                raise Failure(**json.loads(store.get(_REFUSED)), code=ExitCode.FACTS) from error
            if refused is None or left <= _LOOK_S:
                missing = [rank for rank, key in enumerate(keys) if _has(store, key) is False]
                if left <= -NEIGHBOUR_S or not any(is_neighbour(rank, world) for rank in missing):
                    raise _not_all(store, keys, missing, hosts) from error
        look()


def compare(who: Sequence[Mapping[str, object]], world: World) -> None:
    """Raises Failure (FACTS) for two ranks on one GPU, and for ranks that disagree about the size of the world."""
    for rank, other in enumerate(who):
        if other["world_size"] != world.world_size:
            raise _disagree(rank, other, world)
    users: dict[tuple[object, object], list[int]] = defaultdict(list)
    for rank, other in enumerate(who):
        if other["gpu"]:
            users[other["host"], other["gpu"]].append(rank)
    for (host, gpu), ranks in users.items():
        if len(ranks) > 1:
            raise Failure(
                f"ranks {' and '.join(map(str, ranks))} use the same GPU",
                found=f"{gpu} on {host}",
                expected="one GPU for each rank",
                fix="give each task its own: srun --gpus-per-node=N --ntasks-per-node=N, without --gres-flags tricks",
                code=ExitCode.FACTS,
            )


def tell_those_who_wait(store: dist.Store, failure: Failure) -> None:
    """Leave the reason why this rank does not take part: the others would wait for it."""
    said = {name: getattr(failure, name) for name in ("what", "found", "expected", "fix")}
    with suppress(dist.DistError, RuntimeError):
        store.set(_REFUSED, json.dumps(said))


def twice(rank: int, found: str) -> Failure:
    """One rank, two processes; `found` names both."""
    return Failure(
        f"two processes say that they are rank {rank}",
        found=found,
        expected="each rank once",
        fix="give each machine its own --node-rank; under srun read ranks inside the task, and export no RANK; two "
        "runs on one host need ports of their own: --master-port, or MASTER_PORT under mpiexec",
        code=ExitCode.FACTS,
    )


def _has(store: dist.Store, key: str) -> bool | None:
    """None where the store does not answer."""
    try:
        return bool(store.check([key]))
    except (dist.DistError, RuntimeError):
        return None


def _not_all(store: dist.Store, keys: Sequence[str], missing: Sequence[int], hosts: Sequence[str]) -> Failure:
    empty = _empty_hosts(store, [key for rank, key in enumerate(keys) if rank not in missing], hosts) if missing else []
    ranks = ", ".join(map(str, missing)) or "none, but the store is gone"
    return Failure(
        f"not all ranks arrived: missing {ranks}{', and no rank came from ' * bool(empty)}{', '.join(empty)}",
        found=f"{len(keys) - len(missing)} of {len(keys)} ranks",
        fix="look at the output of the missing ranks; launch.timeouts.start=SECONDS waits longer",
        code=ExitCode.PEER,
    )


def _empty_hosts(store: dist.Store, arrived: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """The hosts from which no rank came; none where ranks call their hosts otherwise than the launcher does."""
    with suppress(dist.DistError, RuntimeError):
        names = {_short(json.loads(value)["host"]) for value in store.multi_get(list(arrived))}
        if names <= {_short(host) for host in hosts}:
            return [host for host in hosts if _short(host) not in names]
    return []


def _short(host: str) -> str:
    return host.partition(".")[0]


def _disagree(rank: int, other: Mapping[str, object], world: World) -> Failure:
    return Failure(
        f"rank {rank} and rank {world.rank} disagree about the number of ranks",
        found=f"{other['world_size']} says rank {rank} on {other['host']}, {world.world_size} says rank {world.rank}",
        fix="give all nodes the same number of GPUs and the same --nodes, or set --procs-per-node to one number",
        code=ExitCode.FACTS,
    )
