"""Rows of docs/evidence/failures.md about machines and the network between them: each machine a network namespace."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from network import Host, joined, missing
from stage import ENDLESS, TINY, TRAIN, Started, command, verdict
from trials import Trial

Row = Callable[[int, Path], Trial]
START_S = 15  # less is over before a busy machine has loaded torch: the parent then speaks first


def on(host: Host, folder: Path, *words: str, node: int = 0, master: str = "10.77.0.1") -> Started:
    """One of two nodes' `train`."""
    place = ("--nodes", "2", "--node-rank", str(node), "--master-addr", master, "--master-port", "23456")
    return command(folder, "ip", "netns", "exec", host.namespace, *TRAIN, "--device", "cpu", *place, *words)


def lost(seed: int, folder: Path) -> Trial:
    """Row 8: a node that is gone is named by the others; one that only falls silent is a hang."""
    with joined(2) as hosts:
        words = (*ENDLESS, "launch.timeouts.step=8", "launch.timeouts.save=12")  # it may fall silent in a save
        first, second = (on(host, folder, *words, node=k) for k, host in enumerate(hosts))
        try:
            first.until_step(2 + seed)
            injector = "link down" if seed % 2 else "kill -9 of all of a node's processes"
            hosts[1].cut() if seed % 2 else second.destroy()
            ended = first.ended(90)
        finally:
            second.destroy()
            first.destroy()
    named = () if seed % 2 else (hosts[1].address,)
    return verdict(
        ended,
        {69, 91} if seed % 2 else 69,
        *named,
        "fix:",
        injector=injector,
        process="node 2 of 2",
        folder=folder,
        kept=2,
    )


def no_name(seed: int, folder: Path) -> Trial:
    """Row 30: the first host's name is known to nobody."""
    name = f"no-such-host-{seed}.invalid"
    place = ("--nodes", "2", "--node-rank", "1", "--master-addr", name, "--master-port", "23456")
    ended = command(folder, *TRAIN, "--device", "cpu", *place, *TINY, f"launch.timeouts.start={START_S}").ended(60)
    return verdict(ended, 69, name, "fix:", injector=f"--master-addr {name}", process="the start")


UNREACHABLE = {
    "refused": ("10.77.0.1", None, "refused"),
    "no route": ("192.0.2.1", None, "no route"),
    "dropped": ("10.77.0.1", ("iptables", "-A", "INPUT", "-p", "tcp", "-j", "DROP"), "no answer"),
}


def no_way(seed: int, folder: Path) -> Trial:
    """Row 31: nothing listens, no route, a firewall that drops: told apart, in seconds."""
    kind = list(UNREACHABLE)[seed % 3]
    address, firewall, word = UNREACHABLE[kind]
    with joined(2) as hosts:
        if firewall:
            within = ["ip", "netns", "exec", hosts[0].namespace, *firewall]
            subprocess.run(within, check=True, capture_output=True, timeout=30)
        ended = on(hosts[1], folder, *TINY, f"launch.timeouts.start={START_S}", node=1, master=address).ended(60)
    return verdict(ended, 69, address, word, "fix:", injector=kind, process="the start")


ROWS: Mapping[int, Row] = {8: lost, 30: no_name, 31: no_way}
MISSING = {8: missing, 31: missing}
