"""The all-reduce check sums known numbers over all ranks, verifies the sum and times it.

`python -m train.distributed.allreduce_check` runs one rank of it, for `entrypoint doctor --full`; with --sizes it times
every collective operation, for `train bench comm`. Rank 0 writes the measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

from entrypoint import DEVICE_VARIABLE, ExitCode, Failure, attach_heartbeat, protect_output_streams, world_from_environ


def main(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Run the check; returns the exit code."""
    protect_output_streams(environ)
    try:
        return check_all_reduce(argv, environ)
    except Failure as failure:
        print(failure, file=sys.stderr, flush=True)
        return int(failure.code)


def check_all_reduce(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """`[--result FILE] [--timeout SECONDS] [--sizes BYTES ...]`.

    Raises:
        Failure: PEER if ranks do not meet or are lost; NODE if a sum is wrong or a rank has no GPU.
    """
    parser = argparse.ArgumentParser(prog="train.distributed.allreduce_check", description=__doc__, allow_abbrev=False)
    parser.add_argument("--result", metavar="FILE", type=Path, help="where rank 0 writes what it measured, as JSON")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=60.0, help="for all of it (default: 60)")
    parser.add_argument("--sizes", metavar="BYTES", type=int, nargs="+", help="time each operation with so many bytes")
    arguments = parser.parse_args(argv)
    world, heartbeat = world_from_environ(environ), attach_heartbeat(environ)
    until = time.monotonic() + arguments.timeout
    watch = start_timer(
        arguments.timeout, lambda: exit_as_hung(f"rank {world.rank} of {world.world_size}", arguments.timeout)
    )
    from train.distributed import collectives, rendezvous  # load torch, which the timer must cover as well
    from train.distributed.device import choose_device, gpu_uuid

    device = choose_device(environ.get(DEVICE_VARIABLE) or "cpu", world.local_rank)
    patience = max(0.0, until - time.monotonic()) / 2  # half of what is left: its failure names the missing ranks
    store = rendezvous.connect(world, environ, patience, gpu_uuid(device))
    with collectives.process_group(world, device, store, arguments.timeout) as backend:
        if arguments.sizes:
            result = collectives.time_operations(world, device, arguments.sizes)
        else:
            result = collectives.check_all_reduce(world, device)
    watch.cancel()
    if world.rank == 0 and arguments.result:
        interface = environ.get("GLOO_SOCKET_IFNAME", "") if backend == "gloo" else ""
        facts = {"backend": backend, "device": device.type, "interface": interface}
        arguments.result.write_text(json.dumps(result | facts))
    heartbeat.beat("end")
    return 0


def start_timer(limit_s: float, ring: Callable[[], None]) -> threading.Timer:
    """Call `ring` after `limit_s` seconds: a collective that hangs inside a driver raises nothing."""
    timer = threading.Timer(limit_s, ring)
    timer.daemon = True
    timer.start()
    return timer


def exit_as_hung(who: str, limit_s: float) -> None:
    """End this process immediately. Nothing else ends a process that hangs in a driver."""
    failure = Failure(
        f"{who} was not done after {limit_s:g} s",
        fix="entrypoint doctor --full tries which pairs of GPUs exchange; NCCL_P2P_DISABLE=1 takes another way",
        code=ExitCode.HANG,
    )
    print(failure, file=sys.stderr, flush=True)
    os._exit(int(ExitCode.HANG))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
