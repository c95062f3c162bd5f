"""mpirun's variables, with and without Slurm around it."""

from __future__ import annotations

from typing import Any

import pytest
from machines import captured, machine

from entrypoint import mpi
from entrypoint.allocation import Allocation
from entrypoint.errors import Failure

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
INTEL = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def read(environ: dict[str, str], name: Any = "openmpi") -> Allocation:
    return mpi.read(environ, machine(), name)


def test_one_node_meets_on_loopback() -> None:
    assert (read(OPENMPI).num_nodes, read(OPENMPI).master_addr) == (1, "127.0.0.1")


def test_intel_and_mpich_ranks_are_read() -> None:
    found = read(INTEL | {"MASTER_ADDR": "node01"}, "pmi")
    assert (found.task, found.num_tasks, found.local_task, found.tasks_here) == (3, 4, 1, 2)
    assert (found.node_rank, found.num_nodes, found.master_addr) == (1, 2, "node01")


def test_several_nodes_without_an_address_are_refused_with_the_flag_to_add() -> None:
    environ = OPENMPI | {"OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(Failure, match="which host has rank 0") as caught:
        read(environ)
    assert "-x MASTER_ADDR" in caught.value.fix


def test_inside_slurm_rank_0_is_on_the_jobs_first_node() -> None:
    found = read(captured("openmpi-slurm/task-3@node02"))
    assert (found.master_addr, found.hosts, found.node_rank) == ("node01", ("node01", "node02"), 1)


def test_a_pmi_that_repeats_the_steps_numbers_leaves_the_word_to_slurm() -> None:
    assert mpi.family(captured("pmi2/task-2@node02")) is None


def test_a_pmi_that_differs_from_the_step_is_an_mpirun_inside_it() -> None:
    assert mpi.family(captured("pmi2/task-2@node02") | {"PMI_SIZE": "16"}) == "pmi"


def test_two_mpiruns_on_a_node_have_different_keys() -> None:
    assert read(OPENMPI | {"PMIX_NAMESPACE": "a@1"}).key != read(OPENMPI | {"PMIX_NAMESPACE": "b@1"}).key


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK must be below OMPI_COMM_WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "OMPI_COMM_WORLD_LOCAL_RANK must be below"),
        ({"OMPI_COMM_WORLD_SIZE": ""}, "OMPI_COMM_WORLD_SIZE is not set"),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": ""}, "OMPI_COMM_WORLD_LOCAL_RANK is not set"),
        ({"OMPI_COMM_WORLD_RANK": "one"}, "OMPI_COMM_WORLD_RANK is not a whole number"),
        ({"OMPI_COMM_WORLD_SIZE": "-2"}, "OMPI_COMM_WORLD_SIZE is not a whole number"),
    ],
)
def test_impossible_numbers_are_refused_by_name(change: dict[str, str], named: str) -> None:
    with pytest.raises(Failure, match=named) as caught:
        read(OPENMPI | change)
    assert caught.value.code == 76
