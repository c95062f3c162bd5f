"""One machine, and machines by hand, have an allocation of their own."""

from __future__ import annotations

import dataclasses

import pytest
from machines import machine

from entrypoint.launchers import local
from entrypoint.options import LaunchOptions


def test_a_bare_machine_is_a_world_of_its_own() -> None:
    allocation = local.single_node_allocation(machine())
    assert (allocation.num_nodes, allocation.num_tasks, allocation.master_addr, allocation.one_task_per_node) == (
        1,
        1,
        "127.0.0.1",
        True,
    )


def test_two_starts_on_one_machine_have_different_keys() -> None:
    assert local.single_node_allocation(machine()).launch_id != local.single_node_allocation(machine()).launch_id


def test_machines_by_hand_take_their_place_from_the_command_line() -> None:
    options = LaunchOptions(nodes=2, node_rank=1, master_addr="a", master_port=4000)
    allocation = local.manual_allocation(options, machine())
    assert (allocation.node_rank, allocation.num_nodes, allocation.master_addr, allocation.master_port) == (
        1,
        2,
        "a",
        4000,
    )


def test_all_machines_by_hand_share_a_key() -> None:
    first, second = (LaunchOptions(nodes=2, node_rank=rank, master_addr="a") for rank in (0, 1))
    assert (
        local.manual_allocation(first, machine()).launch_id
        == local.manual_allocation(second, machine(hostname="b")).launch_id
    )


def test_the_interface_of_a_link_local_address_may_have_another_name_on_each_machine() -> None:
    first, second = (LaunchOptions(nodes=2, node_rank=0, master_addr=f"fe80::1%{name}") for name in ("eth0", "ib0"))
    assert local.manual_allocation(first, machine()).launch_id == local.manual_allocation(second, machine()).launch_id


def test_an_allocation_is_a_value_that_nobody_changes() -> None:
    allocation = local.single_node_allocation(machine())
    with pytest.raises(dataclasses.FrozenInstanceError):
        allocation.task = 1  # type: ignore[misc]
