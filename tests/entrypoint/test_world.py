"""The contract between parent and worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint.errors import Failure
from entrypoint.world import CONTRACT, World, from_environ, integer, port, to_environ

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
    assert to_environ(WORLD) == {
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
    assert from_environ(to_environ(WORLD)) == WORLD


@pytest.mark.parametrize("variable", CONTRACT.values())
def test_a_missing_variable_is_named(variable: str) -> None:
    environ = to_environ(WORLD)
    del environ[variable]
    with pytest.raises(Failure, match=variable):
        from_environ(environ)


@pytest.mark.parametrize("text", ["-1", "1.0", "", "x", "0x1", "1 ", "٣", "²"])
def test_what_is_not_a_plain_whole_number_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="RANK is not a whole number"):
        integer("RANK", text)


@pytest.mark.parametrize("text", ["0", "65536", "99999"])
def test_what_is_no_port_is_refused_before_any_socket(text: str) -> None:
    with pytest.raises(Failure, match="MASTER_PORT is not a port"):
        port("MASTER_PORT", text)


@given(st.integers(0, 10**9))
def test_every_whole_number_is_read_back(number: int) -> None:
    assert integer("RANK", str(number)) == number


def test_a_number_that_python_would_not_read_is_refused_like_any_other() -> None:
    with pytest.raises(Failure, match="RANK is not a whole number") as caught:
        integer("RANK", "9" * 5000)
    assert len(str(caught.value)) < 500
