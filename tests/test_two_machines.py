"""Several machines without a scheduler, each a network namespace: one training, or an error that says what is wrong."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest
from machines import captured
from network import Host, ip, joined, missing
from processes import python, scratch, unmeasured, wait_until
from runs import ENDLESS, TEN_STEPS, Run

REASON = missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=REASON or "")]
WAIT_S = 150.0


@pytest.fixture
def pair() -> Iterator[Sequence[Host]]:
    with joined(2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights that one process comes to."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "config.yaml").write_text(TEN_STEPS)
    done = python("-m", "train", "--config", "config.yaml", cwd=folder, env=unmeasured())
    assert done.returncode == 0, done.stderr
    return Run(folder=folder / "runs" / "run").weights(10)


def start(host: Host, folder: Path, **changes: object) -> Popen[str]:
    """`train` on one machine, as a user types it there; `changes` are its options and settings."""
    options = {"nodes": 2, "node_rank": 0, "master_addr": "10.77.0.1", "master_port": 23456, "procs_per_node": 1}
    config, limit = changes.pop("config", TEN_STEPS), changes.pop("start_s", 60)
    (folder / "config.yaml").write_text(str(config))
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (options | changes).items()]
    line = ("-m", "train", "--config", "config.yaml", "--device", "cpu", *words, f"launch.timeouts.start={limit}")
    return host.start(*line, cwd=folder, measured=False, OMP_NUM_THREADS="1")


def ended(process: Popen[str]) -> tuple[int, str]:
    """Its exit code and all that it said; killed where it does not end."""
    try:
        output, _ = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    return process.returncode, output


def both(first: Popen[str], second: Popen[str]) -> tuple[list[int], str]:
    """Their exit codes, and what both said."""
    try:
        results = [ended(first), ended(second)]
    finally:
        first.kill()
        second.kill()
    return [code for code, _ in results], "\n".join(output for _, output in results)


def assert_like(run: Run, expected: dict[str, Any]) -> None:
    for name, weights in run.weights(10).items():
        assert np.all(np.abs(weights - expected[name]) <= 1e-6 + 1e-5 * np.abs(expected[name])), name


@pytest.fixture(scope="module")
def two_of_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, set[str], set[str]]:
    """A training of two machines with two ranks each; where they listened meanwhile, and afterwards."""
    folder = tmp_path_factory.mktemp("two")
    with joined(2) as hosts:
        begun, started = (
            time.monotonic(),
            [start(host, folder, node_rank=k, procs_per_node=2) for k, host in enumerate(hosts)],
        )
        heard: set[str] = set()
        while any(process.poll() is None for process in started) and time.monotonic() < begun + WAIT_S:
            heard |= {address for host in hosts for address in host.listens()}
            time.sleep(0.2)
        codes, output = both(*started)
        after = {address for host in hosts for address in host.listens()}
    assert codes == [0, 0], output
    return Run(folder=folder / "runs" / "run"), heard, after


def test_two_machines_of_two_ranks_learn_what_one_process_learns(
    two_of_two: tuple[Run, set[str], set[str]], alone: dict[str, Any]
) -> None:
    run, _, _ = two_of_two
    assert (run.record["world"]["world_size"], run.record["world"]["num_nodes"]) == (4, 2)
    assert_like(run, alone)


def test_they_listen_only_on_the_network_that_joins_them_and_not_afterwards(
    two_of_two: tuple[Run, set[str], set[str]],
) -> None:
    _, heard, after = two_of_two
    assert {"10.77.0.1", "10.77.0.2"} <= heard <= {"10.77.0.1", "10.77.0.2", "127.0.0.1"}
    assert after == set()


def test_three_machines_learn_it_too_the_first_one_started_last(tmp_path: Path, alone: dict[str, Any]) -> None:
    with joined(3) as hosts:
        later = [start(host, tmp_path, nodes=3, node_rank=k) for k, host in enumerate(hosts) if k]
        wait_until(lambda: (tmp_path / "runs/run/logs/rank-0002.log").exists(), "the third machine's rank")
        first = start(hosts[0], tmp_path, nodes=3)
        results = [ended(process) for process in (first, *later)]
    assert [code for code, _ in results] == [0, 0, 0], results
    assert_like(Run(folder=tmp_path / "runs" / "run"), alone)


def test_two_machines_under_torch_distributed_launch_learn_it_too(
    pair: Sequence[Host], tmp_path: Path, alone: dict[str, Any]
) -> None:
    (tmp_path / "config.yaml").write_text(TEN_STEPS)
    nodes = ("--nnodes=2", "--master_addr=10.77.0.1", "--master_port=23457", "--nproc_per_node=1")
    train = ("-m", "train", "--config", "config.yaml", "--device", "cpu")
    launch = ("-m", "torch.distributed.launch", *nodes)
    with scratch() as temporary:  # torchrun leaves a folder in it
        options = {"cwd": tmp_path, "measured": False, "OMP_NUM_THREADS": "1", "TMPDIR": temporary}
        codes, output = both(
            *(host.start(*launch, f"--node_rank={k}", *train, **options) for k, host in enumerate(pair))
        )
    assert codes == [0, 0], output
    assert_like(Run(folder=tmp_path / "runs" / "run"), alone)


@pytest.fixture
def debians(tmp_path: Path) -> Iterator[Sequence[Host]]:
    """Machines that know each other, and their own name as 127.0.1.1: so Debian's installer writes it.

    Their addresses are above 127: of two ranks gloo lets the one with the lower address wait for the other.
    """
    with joined(2, "192.168.77") as hosts:
        known = {f"node0{number}": host.address for number, host in enumerate(hosts, 1)}
        files = {own: tmp_path / f"{own}.hosts" for own in known}
        for own, file in files.items():
            file.write_text("".join(f"{address} {name}\n" for name, address in (known | {own: "127.0.1.1"}).items()))
        yield [replace(host, etc_hosts=file) for host, file in zip(hosts, files.values(), strict=True)]


def by_pet(rank: int) -> dict[str, str]:
    """Made up. It tells no other machine's name."""
    return {"PET_NNODES": "2", "PET_NODE_RANK": str(rank), "PET_MASTER_ADDR": "node01"}


def by_slurm(rank: int) -> dict[str, str]:
    """Captured on node01 and node02, one task each."""
    return captured(f"per-node/task-{rank}@node0{rank + 1}")


@pytest.mark.parametrize("launched", [by_pet, by_slurm])
def test_a_master_that_knows_its_own_name_as_loopback_adds_up_with_the_other_machine(
    debians: Sequence[Host], tmp_path: Path, launched: Callable[[int], dict[str, str]]
) -> None:
    smoke = (sys.executable, "-m", "train.distributed.allreduce_check", "--result", "sum.json", "--timeout", "60")
    line = ("-m", "entrypoint", "run", "--device", "cpu", "--", *smoke)
    started = (host.start(*line, cwd=tmp_path, **launched(rank)) for rank, host in enumerate(debians))
    codes, output = both(*started)
    assert codes == [0, 0], output
    record = json.loads((tmp_path / "sum.json").read_text())
    assert (record["ranks"], record["interface"]) == (2, "eth0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How two machines are joined. Each list: the addresses of its eth0; `private`: of a network that joins nothing.

    own: what each machine calls itself; others: what the other one calls it.
    """

    first: Sequence[str]
    second: Sequence[str]
    own: Sequence[str]
    others: Sequence[str]
    private: str = ""


V4, V6 = ("192.168.77.1", "192.168.77.2"), ("fd77::1", "fd77::2")
NETWORKS = {
    "ipv4-only": Network(first=V4[:1], second=V4[1:], own=V4, others=V4),
    "ipv6-only": Network(first=V6[:1], second=V6[1:], own=V6, others=V6),
    "ipv6-only-and-debian": Network(first=V6[:1], second=V6[1:], own=("127.0.1.1",) * 2, others=V6),
    "both-and-the-first-knows-itself-by-ipv4": Network(first=(V4[0], V6[0]), second=(V4[1], V6[1]), own=V4, others=V6),
    "both-and-the-first-knows-itself-by-ipv6": Network(first=(V4[0], V6[0]), second=(V4[1], V6[1]), own=V6, others=V4),
    "a-private-network-that-its-own-name-means": Network(
        first=V4[:1], second=V4[1:], own=("10.99.0.1", V4[1]), others=V4, private="10.99.0.1"
    ),
    "a-private-network-that-its-name-means-too": Network(
        first=V4[:1], second=V4[1:], own=V4, others=("10.99.0.1 192.168.77.1", V4[1]), private="10.99.0.1"
    ),
}


def readdressed(hosts: Sequence[Host], network: Network, folder: Path) -> list[Host]:
    """The two machines with other addresses and names."""
    for host, addresses in zip(hosts, (network.first, network.second), strict=True):
        ip("-n", host.namespace, "addr", "flush", "dev", "eth0", "scope", "global")
        for address in addresses:
            flags = ("/64", "nodad") if ":" in address else ("/24",)
            done = ip("-n", host.namespace, "addr", "add", f"{address}{flags[0]}", "dev", "eth0", *flags[1:])
            assert done.returncode == 0, done.stderr
    if network.private:
        for words in ("add priv0 type veth peer name priv1", "set priv0 up", "set priv1 up"):
            ip("-n", hosts[0].namespace, "link", *words.split())
        ip("-n", hosts[0].namespace, "addr", "add", f"{network.private}/24", "dev", "priv0")
    files = []
    for number in (0, 1):
        texts = [network.own[k] if k == number else network.others[k] for k in (0, 1)]
        lines = [f"{address} node0{k + 1}\n" for k, text in enumerate(texts) for address in text.split()]
        files.append(folder / f"{number}.hosts")
        files[-1].write_text("127.0.0.1 localhost\n" + "".join(lines))
    return [replace(host, etc_hosts=file) for host, file in zip(hosts, files, strict=True)]


@pytest.mark.parametrize("launched", [by_pet, by_slurm])
@pytest.mark.parametrize("name", NETWORKS)
def test_machines_add_up_over_any_family_and_however_they_call_the_first_one(
    pair: Sequence[Host], tmp_path: Path, name: str, launched: Callable[[int], dict[str, str]]
) -> None:
    hosts = readdressed(pair, NETWORKS[name], tmp_path)
    smoke = (sys.executable, "-m", "train.distributed.allreduce_check", "--result", "sum.json", "--timeout", "60")
    line = ("-m", "entrypoint", "run", "--device", "cpu", "--", *smoke)
    started = (host.start(*line, cwd=tmp_path, **launched(rank)) for rank, host in enumerate(hosts))
    codes, output = both(*started)
    assert codes == [0, 0], output
    record = json.loads((tmp_path / "sum.json").read_text())
    assert (record["ranks"], record["interface"]) == (2, "eth0")


UNREACHABLE = {
    "nothing-listens": ("10.77.0.1", "refused", "look at the output of rank 0"),
    "no-such-machine": ("10.77.0.9", "no route to the host", "MASTER_ADDR"),
    "no-route": ("192.0.2.1", "no route to the host", "MASTER_ADDR"),
}


@pytest.mark.parametrize(("address", "why", "fix"), UNREACHABLE.values(), ids=UNREACHABLE)
def test_a_master_that_is_not_there_is_named_with_the_reason_and_a_fix(
    pair: Sequence[Host], tmp_path: Path, address: str, why: str, fix: str
) -> None:
    code, output = ended(start(pair[1], tmp_path, node_rank=1, master_addr=address, start_s=3))
    assert code == 69, output
    for words in (address, why, fix):
        assert words in output


def test_a_machine_that_never_comes_is_named_by_its_ranks(pair: Sequence[Host], tmp_path: Path) -> None:
    code, output = ended(start(pair[0], tmp_path, procs_per_node=2, start_s=15))
    assert code == 69
    assert "not all ranks arrived: missing 2, 3" in output


def test_a_machine_that_is_lost_ends_the_other_one(pair: Sequence[Host], tmp_path: Path) -> None:
    run = Run(folder=tmp_path / "runs" / "run")
    first, second = (start(host, tmp_path, node_rank=k, config=ENDLESS) for k, host in enumerate(pair))
    try:
        wait_until(lambda: len(run.logged()) >= 3, "three steps", WAIT_S)
        second.send_signal(signal.SIGKILL)
        code, output = ended(first)
    finally:
        second.kill()
        second.communicate(timeout=WAIT_S)
    assert code == 69, output
    assert pair[1].address in output
    assert "resume" in output


@pytest.mark.parametrize("procs", [1, 2])
def test_two_machines_that_are_both_number_0_are_told(pair: Sequence[Host], tmp_path: Path, procs: int) -> None:
    codes, output = both(*(start(host, tmp_path, procs_per_node=procs, start_s=20) for host in pair))
    assert 76 in codes, output
    assert set(codes) <= {69, 76}
    assert "two processes say that they are rank" in output
    assert "--node-rank" in output


def test_machines_that_disagree_about_their_number_are_told(pair: Sequence[Host], tmp_path: Path) -> None:
    codes, output = both(*(start(host, tmp_path, node_rank=k, nodes=2 + k) for k, host in enumerate(pair)))
    assert 76 in codes, output
    assert set(codes) <= {69, 76}
    assert "disagree about the number of ranks" in output
    assert "--nodes" in output
