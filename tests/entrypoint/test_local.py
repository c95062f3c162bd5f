"""One machine, machines by hand, and PET_* sets."""

from __future__ import annotations

import pytest
from machines import machine

from entrypoint.errors import Failure
from entrypoint.launchers import local
from entrypoint.options import LaunchOptions

PET = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "4",
    "PET_MASTER_ADDR": "job-master-0",
    "PET_MASTER_PORT": "23456",
}


def test_a_bare_machine_is_a_world_of_its_own() -> None:
    found = local.single_node_allocation(machine())
    assert (found.num_nodes, found.num_tasks, found.master_addr, found.one_task_per_node) == (1, 1, "127.0.0.1", True)


def test_two_starts_on_one_machine_have_different_keys() -> None:
    assert local.single_node_allocation(machine()).launch_id != local.single_node_allocation(machine()).launch_id


def test_machines_by_hand_take_their_place_from_the_command_line() -> None:
    options = LaunchOptions(nodes=2, node_rank=1, master_addr="a", master_port=4000)
    found = local.manual_allocation(options, machine())
    assert (found.node_rank, found.num_nodes, found.master_addr, found.master_port) == (1, 2, "a", 4000)


def test_all_machines_by_hand_share_a_key() -> None:
    first, second = (LaunchOptions(nodes=2, node_rank=rank, master_addr="a") for rank in (0, 1))
    assert (
        local.manual_allocation(first, machine()).launch_id
        == local.manual_allocation(second, machine(hostname="b")).launch_id
    )


def test_a_pet_set_is_one_task_on_each_node() -> None:
    found = local.pet_allocation(PET, machine())
    assert (found.node_rank, found.num_nodes, found.procs_per_node) == (1, 2, 4)
    assert (found.master_addr, found.master_port) == ("job-master-0", 23456)


def test_a_pet_set_for_one_node_needs_no_address() -> None:
    assert local.pet_allocation({"PET_NNODES": "1", "PET_NPROC_PER_NODE": "gpu"}, machine()).procs_per_node is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"PET_NNODES": "1:4"}, "PET_NNODES=1:4"),
        ({"PET_NNODES": "two"}, "PET_NNODES"),
        ({"PET_NNODES": "0"}, "PET_NNODES=0"),
        ({"PET_NPROC_PER_NODE": "0"}, "PET_NPROC_PER_NODE=0"),
        ({"PET_MASTER_PORT": "70000"}, "PET_MASTER_PORT is not a port"),
        ({"PET_NODE_RANK": ""}, "PET_NODE_RANK"),
        ({"PET_NODE_RANK": "2"}, "PET_NODE_RANK=2"),
        ({"PET_MASTER_ADDR": ""}, "PET_MASTER_ADDR"),
        ({"PET_MASTER_PORT": "x"}, "PET_MASTER_PORT"),
        ({"PET_NPROC_PER_NODE": "many"}, "PET_NPROC_PER_NODE"),
    ],
)
def test_a_pet_set_that_cannot_be_is_refused_by_name(change: dict[str, str], named: str) -> None:
    with pytest.raises(Failure, match=named) as caught:
        local.pet_allocation(PET | change, machine())
    assert caught.value.code == 76


def test_the_interface_of_a_link_local_address_may_have_another_name_on_each_machine() -> None:
    first, second = (LaunchOptions(nodes=2, node_rank=0, master_addr=f"fe80::1%{name}") for name in ("eth0", "ib0"))
    assert local.manual_allocation(first, machine()).launch_id == local.manual_allocation(second, machine()).launch_id
    pets = [PET | {"PET_MASTER_ADDR": f"fe80::1%{name}"} for name in ("eth0", "ib0")]
    assert len({local.pet_allocation(pet, machine()).launch_id for pet in pets}) == 1
