"""mpirun's variables, with and without Slurm around it."""

from __future__ import annotations

from typing import Any

import pytest
from machines import captured, machine

from entrypoint.errors import Failure
from entrypoint.launchers import mpi
from entrypoint.launchers.allocation import Allocation

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
INTEL = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}

PALS = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2", "PALS_APID": "1c2d"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "3",
    "MV2_COMM_WORLD_SIZE": "4",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}
# What MPICH 4.0.2's mpiexec sets beside the numbers, on each host its own.
HYDRA = INTEL | {"PMI_FD": "8", "HYDI_CONTROL_FD": "7", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME": "node02"}


def read(environ: dict[str, str], name: Any = "openmpi") -> Allocation:
    return mpi.read_allocation(environ, machine(), name)


def test_one_node_meets_on_loopback() -> None:
    assert (read(OPENMPI).num_nodes, read(OPENMPI).master_addr) == (1, "127.0.0.1")


@pytest.mark.parametrize("ranks", [INTEL, PALS, MVAPICH, INTEL | MVAPICH], ids=["intel", "pals", "mvapich", "both"])
def test_intels_mpichs_crays_and_mvapichs_ranks_are_read(ranks: dict[str, str]) -> None:
    assert mpi.detect_family(ranks) == "pmi"
    found = read(ranks | {"MASTER_ADDR": "node01"}, "pmi")
    assert (found.task, found.num_tasks, found.local_task, found.tasks_on_node) == (3, 4, 1, 2)
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
    assert mpi.detect_family(captured("pmi2/task-2@node02")) is None


def test_a_pmi_that_differs_from_the_step_is_an_mpirun_inside_it() -> None:
    assert mpi.detect_family(captured("pmi2/task-2@node02") | {"PMI_SIZE": "16"}) == "pmi"


def test_two_mpiruns_on_a_node_have_different_keys() -> None:
    assert read(OPENMPI | {"PMIX_NAMESPACE": "a@1"}).launch_id != read(OPENMPI | {"PMIX_NAMESPACE": "b@1"}).launch_id


@pytest.mark.parametrize("name", ["PALS_APID", "MPISPAWN_MPIRUN_ID", "PMI_JOBID"])
def test_two_launches_of_one_family_have_different_keys(name: str) -> None:
    first, second = (read(MVAPICH | {name: number, "MASTER_ADDR": "a"}, "pmi").launch_id for number in ("1", "2"))
    assert first != second


@pytest.mark.parametrize("name", ["PBS_JOBID", "LSB_JOBID", "LSB_JOBINDEX"])
def test_hydras_launches_in_two_jobs_have_different_keys(name: str) -> None:
    first, second = (read(HYDRA | {name: number, "MASTER_ADDR": "a"}, "pmi").launch_id for number in ("1", "2"))
    assert first != second


def test_what_each_host_of_hydras_has_of_its_own_is_no_part_of_the_key() -> None:
    hosts = [HYDRA, HYDRA | {"PMI_RANK": "0", "PMI_FD": "6", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME": "node01"}]
    hosts.append(HYDRA | {"PMI_PORT": "node02:33735"})
    assert len({read(host | {"MASTER_ADDR": "a"}, "pmi").launch_id for host in hosts}) == 1


@pytest.mark.parametrize("ranks", [MVAPICH, PALS, OPENMPI])
def test_the_job_is_no_part_of_the_key_where_it_may_not_be_handed_on(ranks: dict[str, str]) -> None:
    name: Any = mpi.detect_family(ranks)
    given = ranks | {"MASTER_ADDR": "a"}
    assert read(given, name).launch_id == read(given | {"PBS_JOBID": "7.pbs"}, name).launch_id


def test_half_of_palss_set_is_refused_by_its_missing_half() -> None:
    with pytest.raises(Failure, match="mpirun, but PMI_LOCAL_SIZE is not set"):
        read({name: value for name, value in PALS.items() if name != "PMI_LOCAL_SIZE"}, "pmi")


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
