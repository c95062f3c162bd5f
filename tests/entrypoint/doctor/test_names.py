"""The way to rank 0, with real sockets."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machines import machine
from network import Host, ip, joined, missing
from processes import candidates, free_port

from entrypoint.doctor import network
from entrypoint.doctor.context import CheckContext, Finding
from entrypoint.launchers import detect_allocation
from entrypoint.network import bind_first_free
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan, plan_allocation


def planned(addr: str = "127.0.0.1", rank: int = 0, procs: int = 1, nodes: int = 2) -> Plan:
    options = LaunchOptions(device="cpu", nodes=nodes, node_rank=rank, master_addr=addr, procs_per_node=procs)
    return plan_allocation(detect_allocation({}, options, machine()), options, machine(), {})


def network_findings(plan: Plan, **environ: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in network.check(CheckContext(environ=environ, plan=plan))}


def test_one_rank_meets_nobody() -> None:
    assert list(network_findings(planned(nodes=1))) == ["network"]


def test_several_ranks_of_one_host_need_a_port_only() -> None:
    findings = network_findings(planned(nodes=1, procs=2))
    assert "network" not in findings
    assert findings["port"].state == "ok"


def test_a_master_that_does_not_resolve_is_a_failure() -> None:
    finding = network_findings(planned("no-such-host.invalid", rank=1))["master"]
    assert (finding.state, "no-such-host.invalid" in finding.text, "MASTER_ADDR" in finding.fix) == ("fail", True, True)


def test_a_master_that_resolves_is_told_with_its_interface() -> None:
    assert "127.0.0.1, through lo" in network_findings(planned())["master"].text


def test_a_taken_port_is_a_failure() -> None:
    with bind_first_free("127.0.0.1", candidates("doctor")) as taken:
        port = taken.getsockname()[1]
        finding = network_findings(replace(planned(), ports=(port,)))["port"]
    assert (finding.state, str(port) in finding.text, "ENTRYPOINT_PORT_RANGE" in finding.fix) == ("fail", True, True)


def test_a_taken_candidate_is_only_told() -> None:
    with bind_first_free("127.0.0.1", candidates("first")) as taken:
        ports = (taken.getsockname()[1], *candidates("second"))
        finding = network_findings(replace(planned(), ports=ports))["port"]
    assert (finding.state, "1 before it are taken" in finding.text) == ("ok", True)


def test_a_master_on_which_nobody_listens_yet_is_reached() -> None:
    finding = network_findings(replace(planned(rank=1), ports=(free_port(),)))["way"]
    assert (finding.state, "nobody listens there yet" in finding.text) == ("ok", True)


def test_a_master_that_answers_is_reached() -> None:
    with bind_first_free("127.0.0.1", candidates("answers")) as listener:
        finding = network.check_route("127.0.0.1", listener.getsockname()[1])
    assert (finding.state, "nobody" in finding.text) == ("ok", False)


@pytest.mark.parametrize(
    ("error", "words", "fix"),
    [
        (OSError(errno.EHOSTUNREACH, "No route to host"), "no route", "ENTRYPOINT_INTERFACE"),
        (TimeoutError(), "firewall", "open the ports 23456"),
    ],
)
def test_a_master_that_is_not_reached_is_a_failure(error: OSError, words: str, fix: str) -> None:
    finding = network.check_route("192.0.2.1", 23_456, probe=lambda *_: error)
    assert (finding.state, words in finding.text, fix in finding.fix) == ("fail", True, True)


def test_a_host_that_does_not_know_its_own_name_is_a_warning() -> None:
    (finding,) = network.check_own_name("no-such-host.invalid")
    assert (finding.state, "/etc/hosts" in finding.fix) == ("warn", True)


@pytest.mark.parametrize(
    ("variable", "value", "fine"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth0", True),
        ("NCCL_SOCKET_IFNAME", "ib,eth", True),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", True),
        ("NCCL_SOCKET_IFNAME", "^eth,lo", False),
        ("GLOO_SOCKET_IFNAME", "eth", False),
        ("GLOO_SOCKET_IFNAME", "eth0", True),
        ("ENTRYPOINT_INTERFACE", "ib0", False),
        ("ENTRYPOINT_INTERFACE", "", True),
    ],
)
def test_a_chosen_interface_must_be_there(variable: str, value: str, fine: bool) -> None:
    finding = network.check_interface_variable(variable, value, ("lo", "eth0"))
    assert (finding is None) == fine
    assert finding is None or (finding.state == "fail" and variable in finding.fix)


def test_a_wrong_interface_is_seen_on_this_host() -> None:
    assert network_findings(planned(nodes=1, procs=2), GLOO_SOCKET_IFNAME="no-such0")["interface"].state == "fail"


@pytest.fixture
def hosts() -> Iterator[Sequence[Host]]:
    if why := missing():
        pytest.skip(why)
    with joined(2) as machines:
        yield machines


def looked(hosts: Sequence[Host], folder: Path, *more: str, rank: int = 1) -> dict[str, Any]:
    """What the doctor on the second of two machines says of the way to the first."""
    of_two = ["--nodes", "2", "--node-rank", str(rank), "--master-addr", hosts[0].address]
    words = [*of_two, *more, "--output", str(folder)]
    with hosts[1].start("-m", "entrypoint", "doctor", "--json", "--device", "cpu", *words, cwd=folder) as process:
        output, _ = process.communicate(timeout=60)
    return {finding["name"]: finding for finding in json.loads(output)["findings"]}


def test_two_machines_reach_each_other(hosts: Sequence[Host], tmp_path: Path) -> None:
    findings = looked(hosts, tmp_path)
    assert "10.77.0.1, through eth0" in findings["master"]["text"]
    assert (findings["way"]["state"], "nobody listens there yet" in findings["way"]["text"]) == ("ok", True)


@pytest.fixture
def debian(hosts: Sequence[Host], tmp_path: Path) -> Sequence[Host]:
    """The master by its name, and a machine that knows that name as loopback: on the master itself that is usual."""
    (tmp_path / "hosts").write_text("127.0.1.1 node01\n")
    return [replace(hosts[0], address="node01"), replace(hosts[0], etc_hosts=tmp_path / "hosts")]


def test_a_master_that_knows_its_own_name_as_loopback_names_another_interface(
    debian: Sequence[Host], tmp_path: Path
) -> None:
    findings = looked(debian, tmp_path, rank=0)
    assert (findings["master"]["state"], "reached through eth0" in findings["master"]["text"]) == ("ok", True)
    assert "rank 0 can listen on 0.0.0.0:" in findings["port"]["text"]


def test_another_machine_that_knows_the_masters_name_as_loopback_is_warned(
    debian: Sequence[Host], tmp_path: Path
) -> None:
    finding = looked(debian, tmp_path, rank=1)["master"]
    assert (finding["state"], "this host itself" in finding["text"]) == ("warn", True)
    assert "/etc/hosts" in finding["fix"]


def test_a_master_that_no_network_joins_to_another_machine_is_warned(debian: Sequence[Host], tmp_path: Path) -> None:
    debian[0].cut()
    finding = looked(debian, tmp_path, rank=0)["master"]
    assert (finding["state"], "no network interface" in finding["text"]) == ("warn", True)


# Hands each connection on to the second machine, as a service or a router does.
IN_FRONT = """
import socket
with socket.create_server(("10.77.0.1", 23456)) as server:
    print("ready", flush=True)
    while True:
        server.accept()[0].close()
        socket.create_connection(("10.77.0.2", 23456)).close()
"""


def test_a_service_in_front_of_rank_0_is_no_trouble(hosts: Sequence[Host], tmp_path: Path) -> None:
    with hosts[0].start("-c", IN_FRONT, cwd=tmp_path) as service:
        try:
            assert service.stdout is not None
            assert service.stdout.readline() == "ready\n"
            findings = looked(hosts, tmp_path, "--master-port", "23456", rank=0)
        finally:
            service.kill()
    assert findings["master"]["text"] == "10.77.0.1 is not this host's own, and is forwarded to it"
    assert (findings["master"]["state"], findings["port"]["state"]) == ("ok", "ok")


def test_a_master_address_of_another_machine_is_a_warning_on_rank_0s(hosts: Sequence[Host], tmp_path: Path) -> None:
    finding = looked(hosts, tmp_path, rank=0)["master"]
    assert (finding["state"], "did not arrive here" in finding["text"]) == ("warn", True)
    assert "unset MASTER_ADDR" in finding["fix"]


def test_a_cut_link_is_no_route(hosts: Sequence[Host], tmp_path: Path) -> None:
    hosts[1].cut()
    findings = looked(hosts, tmp_path)
    assert (findings["master"]["state"], "no route" in findings["master"]["text"]) == ("fail", True)


def test_a_master_that_is_down_has_no_route(hosts: Sequence[Host], tmp_path: Path) -> None:
    hosts[0].cut()
    ip("netns", "exec", hosts[1].namespace, "sysctl", "-w", "net.ipv4.neigh.eth0.retrans_time_ms=100")  # asks faster
    findings = looked(hosts, tmp_path)
    assert (findings["way"]["state"], findings["way"]["text"]) == ("fail", "no route to 10.77.0.1")


def drop_all(hosts: Sequence[Host]) -> None:
    """What the second machine sends to the first arrives nowhere, as behind a firewall."""
    nobody = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
    assert ip("-n", hosts[1].namespace, "neigh", "replace", hosts[0].address, *nobody).returncode == 0


def test_packets_that_a_firewall_drops_are_not_answered(hosts: Sequence[Host], tmp_path: Path) -> None:
    drop_all(hosts)
    findings = looked(hosts, tmp_path)
    assert (findings["way"]["state"], "does not answer within 2 s" in findings["way"]["text"]) == ("fail", True)
    assert "open the ports" in findings["way"]["fix"]


def test_a_name_service_that_hangs_keeps_nobody_waiting(hosts: Sequence[Host], tmp_path: Path) -> None:
    drop_all(hosts)
    (tmp_path / "resolv.conf").write_text(f"nameserver {hosts[0].address}\noptions timeout:30\n")
    words = ["--device", "cpu", "--nodes", "2", "--node-rank", "1", "--master-addr", "node01.example.org"]
    inside = ["sh", "-c", 'mount --bind resolv.conf /etc/resolv.conf && exec "$@"', "sh"]
    doctor = [sys.executable, "-m", "entrypoint", "doctor", "--json", *words]
    command = ["ip", "netns", "exec", hosts[1].namespace, "unshare", "--mount", *inside, *doctor]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["network"]["text"] == "no answer within 4 s: the name service or the network hangs"
    assert "memory" in findings
