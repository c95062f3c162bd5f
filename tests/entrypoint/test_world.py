"""The contract between parent and worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint.errors import Failure
from entrypoint.world import (
    TORCHRUN_VARIABLES,
    World,
    is_loopback,
    parse_port,
    parse_whole_number,
    world_from_environ,
    world_to_environ,
)

WORLD = World(
    rank=3,
    local_rank=1,
    world_size=4,
    local_world_size=2,
    node_rank=1,
    num_nodes=2,
    master_addr="node01",
    master_port=23456,
)


def test_the_contract_is_torchruns() -> None:
    assert world_to_environ(WORLD) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "node01",
        "MASTER_PORT": "23456",
    }


def test_what_the_parent_writes_the_worker_reads() -> None:
    assert world_from_environ(world_to_environ(WORLD)) == WORLD


@pytest.mark.parametrize("variable", TORCHRUN_VARIABLES.values())
def test_a_missing_variable_is_named(variable: str) -> None:
    environ = world_to_environ(WORLD)
    del environ[variable]
    with pytest.raises(Failure, match=variable):
        world_from_environ(environ)


@pytest.mark.parametrize("text", ["-1", "1.0", "", "x", "0x1", "1 ", "٣", "²"])
def test_what_is_not_a_plain_whole_number_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="RANK is not a whole number"):
        parse_whole_number("RANK", text)


@pytest.mark.parametrize("text", ["0", "65536", "99999"])
def test_what_is_no_port_is_refused_before_any_socket(text: str) -> None:
    with pytest.raises(Failure, match="MASTER_PORT is not a port"):
        parse_port("MASTER_PORT", text)


@given(st.integers(0, 10**9))
def test_every_whole_number_is_read_back(number: int) -> None:
    assert parse_whole_number("RANK", str(number)) == number


def test_a_number_that_python_would_not_read_is_refused_like_any_other() -> None:
    with pytest.raises(Failure, match="RANK is not a whole number") as caught:
        parse_whole_number("RANK", "9" * 5000)
    assert len(str(caught.value)) < 500


LOOPBACK = ("localhost", "LOCALHOST", "localhost.", "localhost.localdomain", "localhost4", "localhost6", "my.localhost")
LOOPBACK += (
    "ip6-localhost",
    "ip6-loopback",
    "localhost6.localdomain6",
    "127.0.0.1",
    "127.0.1.1",
    "127.1",
    "0177.0.0.1",
)
LOOPBACK += ("2130706433", "0x7f000001", "::1", "[::1]", "::1%lo", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1")
LOOPBACK += ("::FFFF:7f00:1", "0.0.0.0", "0", "::", "[::]", "::ffff:0.0.0.0")


@pytest.mark.parametrize("host", LOOPBACK)
def test_each_way_to_write_loopback_means_this_host(host: str) -> None:
    assert is_loopback(host)


OTHERS = (
    "127.example.com",
    "127.0.0.1.example.com",
    "localhost.example.com",
    "mylocalhost",
    "node01",
    "",
    "10.0.0.127",
)
OTHERS += ("fe80::1%eth0", "::ffff:10.0.0.1", "2001:db8::7f00:1", "2130706433.example.com", "fd00::1", "128.0.0.1")


@pytest.mark.parametrize("host", OTHERS)
def test_what_only_looks_like_loopback_is_another_host(host: str) -> None:
    assert not is_loopback(host)
