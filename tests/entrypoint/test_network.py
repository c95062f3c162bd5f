"""Ports, interfaces, and telling failures apart."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from machines import REPOSITORY
from network import Host, ip, joined, missing
from processes import candidates

from entrypoint import network
from entrypoint.errors import Failure


def test_a_taken_port_is_passed_over() -> None:
    with network.bind_first_free("127.0.0.1", candidates("taken")) as taken:
        port = taken.getsockname()[1]
        with network.bind_first_free("127.0.0.1", [port, *candidates("other")]) as second:
            assert second.getsockname()[1] != port


def test_ports_that_are_all_taken_are_named() -> None:
    with network.bind_first_free("127.0.0.1", candidates("all")) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match="taken by another process") as caught:
            network.bind_first_free("127.0.0.1", [port])
    assert str(port) in str(caught.value.found)


def test_an_address_of_another_machine_is_refused_with_its_name() -> None:
    with pytest.raises(Failure, match=r"192\.0\.2\.1"):
        network.bind_first_free("192.0.2.1", [20_001])


@pytest.mark.parametrize(
    ("master", "nodes", "address"),
    [
        ("127.0.0.1", 1, "127.0.0.1"),
        ("127.0.0.1", 2, "0.0.0.0"),
        ("192.0.2.1", 1, "192.0.2.1"),
        ("192.0.2.1", 2, "0.0.0.0"),
        ("::1", 2, "::"),
        ("2001:db8::1", 2, "::"),
    ],
)
def test_rank_0_listens_everywhere_only_where_its_address_is_not_its_own(master: str, nodes: int, address: str) -> None:
    assert network.listen_address(master, nodes) == address


def test_rank_0_that_is_known_by_name_listens_on_both_families() -> None:
    """Another host may come to another address of that name."""
    address = network.listen_address("localhost", 2)
    with network.bind_first_free(address, candidates("families")) as listener:
        port = listener.getsockname()[1]
        assert network.probe("127.0.0.1", port, 5.0) is None
        if socket.has_dualstack_ipv6():
            assert address == "::"
            assert network.probe("::1", port, 5.0) is None


def test_without_ipv6_rank_0_listens_on_all_addresses_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert network.listen_address("localhost", 2) == "0.0.0.0"
    assert network.listen_address("localhost", 1) == "127.0.0.1"


def test_a_port_that_another_process_has_in_one_family_is_passed_over() -> None:
    with network.bind_first_free("127.0.0.1", candidates("one family")) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match="taken by another process"):
            network.bind_first_free(network.listen_address("localhost", 2), [port])


def test_an_address_of_this_machine_alone_is_listened_on_alone() -> None:
    if why := missing():
        pytest.skip(why)
    line = "from entrypoint.network import listen_address as to; print(to('10.77.0.1', 2), to('10.77.0.9', 2))"
    with joined(1) as (host,), host.start("-c", line, cwd=REPOSITORY) as process:
        assert process.communicate(timeout=60)[0].split() == ["10.77.0.1", "0.0.0.0"]


def test_a_name_that_does_not_resolve_is_named() -> None:
    with pytest.raises(Failure, match=r"no-such-host\.invalid") as caught:
        network.resolve("no-such-host.invalid")
    assert caught.value.code == 69
    assert "MASTER_ADDR" in caught.value.fix


def test_an_address_resolves_to_itself() -> None:
    assert network.resolve("127.0.0.1") == "127.0.0.1"


def test_a_listener_answers_a_probe() -> None:
    with network.bind_first_free("127.0.0.1", candidates("probe")) as listener:
        assert network.probe("127.0.0.1", listener.getsockname()[1], 5.0) is None


def test_a_closed_port_refuses_a_probe() -> None:
    with network.bind_first_free("127.0.0.1", candidates("closed")) as listener:
        port = listener.getsockname()[1]
    assert isinstance(network.probe("127.0.0.1", port, 5.0), ConnectionRefusedError)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "nothing listens"),
        (OSError(errno.EHOSTUNREACH, "no route"), "no route to the host"),
        (OSError(errno.ENETUNREACH, "no net"), "no route to the host"),
        (TimeoutError("timed out"), "firewall"),
        (None, "not this run"),
    ],
)
def test_each_way_of_not_reaching_the_master_has_its_own_words(error: OSError | None, words: str) -> None:
    failure = network.unreachable_failure("node01", [20_001], error, 10.0)
    assert words in failure.what
    assert "node01" in str(failure.found)


def test_a_refused_master_is_not_said_to_have_ended() -> None:
    error = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    failure = network.unreachable_failure("node01", [20_001], error, 10.0, ("10.0.0.1", "fd00::1"))
    assert failure.found == "node01 (10.0.0.1, fd00::1), ports 20001"
    assert "may not have started, or have ended, or its host has another address" in failure.fix


def test_the_interface_towards_loopback_is_lo() -> None:
    assert network.interface_towards("127.0.0.1") == "lo"


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A machine that knows its own name as 127.0.1.1; docker0 has no container, eth0 leads to node02."""
    if why := missing():
        pytest.skip(why)
    names = tmp_path_factory.mktemp("etc") / "hosts"
    with joined(1) as (host,):
        names.write_text(
            "127.0.0.1 localhost\n127.0.1.1 node01\n10.77.0.2 node02\n10.88.0.2 node03\n10.77.0.1 own\n"
            "fd77::6 node06\nfd77::1 own6\n"
        )
        ip("-n", host.namespace, "addr", "add", "fd77::1/64", "dev", "eth0", "nodad")
        ip("-n", host.namespace, "link", "add", "docker0", "type", "bridge")
        ip("-n", host.namespace, "link", "add", "ib0", "type", "veth", "peer", "name", "switch")
        for name, address in (("docker0", "10.66.0.1"), ("ib0", "10.88.0.1"), ("switch", "169.254.0.1")):
            ip("-n", host.namespace, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", host.namespace, "link", "set", name, "up")
        yield replace(host, etc_hosts=names)


def between(host: Host, hosts: Sequence[str], master: str) -> str:
    """What a Python on that machine takes."""
    line = f"from entrypoint.network import interface_between; print(interface_between({hosts!r}, {master!r}))"
    with host.start("-c", line, cwd=REPOSITORY) as process:
        return process.communicate(timeout=60)[0].strip()


@pytest.mark.parametrize(
    ("hosts", "master", "name"),
    [
        pytest.param((), "node02", "eth0", id="the-masters-own-network"),
        pytest.param((), "10.88.0.9", "ib0", id="that-of-an-address"),
        pytest.param(("node01", "node03"), "node01", "ib0", id="loopback-and-another-host-known"),
        pytest.param(("node03", "node01"), "node01", "ib0", id="loopback-and-another-host-before-it"),
        pytest.param(("node01", "no-such-host.invalid"), "node01", "eth0", id="loopback-and-another-host-unknown"),
        pytest.param((), "node01", "eth0", id="loopback-and-no-default-route"),
        pytest.param((), "own", "eth0", id="its-own-address"),
        pytest.param(("own", "node03"), "own", "ib0", id="its-own-address-and-another-host-elsewhere"),
        pytest.param(("node03", "own"), "own", "ib0", id="its-own-address-and-another-host-before-it"),
        pytest.param((), "node06", "eth0", id="an-address-of-ipv6"),
        pytest.param((), "own6", "eth0", id="its-own-address-of-ipv6"),
        pytest.param((), "127.0.0.1", "lo", id="loopback-for-all"),
        pytest.param((), "localhost", "lo", id="localhost-for-all"),
    ],
)
def test_ranks_of_several_machines_never_talk_over_the_loopback_of_one(
    debian: Host, hosts: Sequence[str], master: str, name: str
) -> None:
    assert between(debian, hosts, master) == name


def test_a_master_that_is_loopback_here_takes_the_default_route(debian: Host) -> None:
    route = ("default", "via", "10.88.0.254")
    ip("-n", debian.namespace, "route", "add", *route)
    try:
        assert between(debian, (), "node01") == "ib0"
    finally:
        ip("-n", debian.namespace, "route", "delete", *route)


def test_an_address_without_a_route_has_no_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_route(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", no_route)
    assert network.interface_towards("192.0.2.1") is None


def test_a_link_local_address_keeps_its_interface() -> None:
    """fe80::1 alone says nothing: each interface has such addresses."""
    assert network.resolve("fe80::1%lo") == "fe80::1%lo"
    assert network.interface_towards("fe80::1%lo") == "lo"


def link_local() -> str:
    """One of this machine's own link-local addresses."""
    lines = (line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines())
    addresses = [(ipaddress.IPv6Address(int(words[0], 16)), words[5]) for words in lines if words[3] == "20"]
    if not addresses:
        pytest.skip("machine: no interface has a link-local address")
    return "%".join(map(str, addresses[0]))


def test_a_listener_on_a_link_local_address_answers_a_probe() -> None:
    address = network.resolve(link_local())
    with network.bind_first_free(address, candidates("link-local")) as listener:
        assert network.probe(address, listener.getsockname()[1], 5.0) is None


def test_a_link_local_address_on_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(Failure, match="fe80::1%nowhere0"):
        network.resolve("fe80::1%nowhere0")


def own_address(host: Host, **environ: str) -> str:
    line = f"from entrypoint.network import own_address; print(own_address({environ!r}))"
    with host.start("-c", line, cwd=REPOSITORY) as process:
        return process.communicate(timeout=60)[0].strip()


def test_the_own_address_is_of_ipv6_where_there_is_no_other() -> None:
    if why := missing():
        pytest.skip(why)
    with joined(1) as (host,):
        assert own_address(host) == "10.77.0.1"
        ip("-n", host.namespace, "addr", "flush", "dev", "eth0", "scope", "global")
        assert own_address(host) == "127.0.0.1"
        ip("-n", host.namespace, "addr", "add", "fd77::1/64", "dev", "eth0", "nodad")
        assert (own_address(host), own_address(host, ENTRYPOINT_INTERFACE="eth0")) == ("fd77::1", "fd77::1")
