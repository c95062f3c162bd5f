"""Launchers that start one process per rank, with and without Slurm around them."""

from __future__ import annotations

import pytest
from machines import captured, machine
from synthetic import FLUX, HYDRA, INTEL, MVAPICH, OPENMPI, PALS, PER_RANK

from entrypoint.errors import Failure
from entrypoint.launchers import detect_allocation, per_rank
from entrypoint.launchers.allocation import Allocation
from entrypoint.options import LaunchOptions


def read(environ: dict[str, str]) -> Allocation:
    launcher = per_rank.find_launcher(environ)
    assert launcher is not None
    return per_rank.read_allocation(environ, machine(), launcher)


def name_of_launcher(environ: dict[str, str]) -> str | None:
    launcher = per_rank.find_launcher(environ)
    return launcher and launcher.name


def test_every_launcher_of_the_table_has_a_case_here() -> None:
    assert set(PER_RANK) == per_rank.NAMES


@pytest.mark.parametrize("name", PER_RANK)
def test_the_ranks_of_every_launcher_are_read(name: str) -> None:
    found = read(PER_RANK[name])
    assert (found.launcher, found.task, found.num_tasks) == (name, 3, 4)


@pytest.mark.parametrize("name", sorted(per_rank.NAMES - {"pmi"}))
def test_the_place_within_a_node_is_read_where_the_launcher_tells_it(name: str) -> None:
    found = read(PER_RANK[name])
    assert (found.local_task, found.tasks_on_node, found.node_rank, found.num_nodes) == (1, 2, 1, 2)


@pytest.mark.parametrize("environ", PER_RANK.values(), ids=PER_RANK)
def test_several_nodes_without_an_address_tell_each_other_their_hosts(environ: dict[str, str]) -> None:
    assert read(environ).exchanges_hosts


def test_one_node_meets_on_loopback() -> None:
    assert (read(OPENMPI).num_nodes, read(OPENMPI).master_addr) == (1, "127.0.0.1")
    assert not read(OPENMPI).exchanges_hosts


def test_an_address_that_the_user_gives_is_enough() -> None:
    found = detect_allocation(INTEL | {"MASTER_ADDR": "node01"}, LaunchOptions(), machine())
    assert (found.master_addr, found.exchanges_hosts) == ("node01", False)


def test_an_address_does_not_replace_the_places_that_a_launcher_does_not_tell() -> None:
    environ = PER_RANK["pmi"] | {"MASTER_ADDR": "node01"}
    assert detect_allocation(environ, LaunchOptions(), machine()).exchanges_hosts


@pytest.mark.parametrize("name", ["PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE"])
def test_a_list_of_hosts_that_only_some_nodes_may_have_changes_nothing(name: str) -> None:
    launcher = per_rank.find_launcher(INTEL)
    assert launcher is not None
    listed = per_rank.read_allocation(INTEL, machine(host_files={name: "node07 8\nnode01 8\n"}), launcher)
    assert listed == per_rank.read_allocation(INTEL, machine(), launcher)


def test_inside_slurm_rank_0_is_on_the_jobs_first_node() -> None:
    found = read(captured("openmpi-slurm/task-3@node02"))
    assert (found.master_addr, found.hosts, found.node_rank) == ("node01", ("node01", "node02"), 1)


def test_a_pmi_that_repeats_the_steps_numbers_leaves_the_word_to_slurm() -> None:
    assert name_of_launcher(captured("pmi2/task-2@node02")) is None


def test_a_pmi_that_differs_from_the_step_is_an_mpirun_inside_it() -> None:
    assert name_of_launcher(captured("pmi2/task-2@node02") | {"PMI_SIZE": "16"}) == "pmi"


def test_two_mpiruns_on_a_node_have_different_keys() -> None:
    assert read(OPENMPI | {"PMIX_NAMESPACE": "a@1"}).launch_id != read(OPENMPI | {"PMIX_NAMESPACE": "b@1"}).launch_id


@pytest.mark.parametrize(
    ("environ", "name"),
    [(MVAPICH, "MPISPAWN_MPIRUN_ID"), (MVAPICH, "PMI_JOBID"), (PALS, "PALS_APID"), (FLUX, "FLUX_JOB_ID")],
    ids=["mvapich", "mvapich-pmi", "pals", "flux"],
)
def test_two_launches_of_one_family_have_different_keys(environ: dict[str, str], name: str) -> None:
    first, second = (read(environ | {name: number}).launch_id for number in ("1", "2"))
    assert first != second


@pytest.mark.parametrize("name", ["PBS_JOBID", "LSB_JOBID", "LSB_JOBINDEX"])
def test_hydras_launches_in_two_jobs_have_different_keys(name: str) -> None:
    first, second = (read(HYDRA | {name: number}).launch_id for number in ("1", "2"))
    assert first != second


def test_what_each_host_of_hydras_has_of_its_own_is_no_part_of_the_key() -> None:
    hosts = [HYDRA, HYDRA | {"PMI_RANK": "0", "PMI_FD": "6", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME": "node01"}]
    hosts.append(HYDRA | {"PMI_PORT": "node02:33735"})
    assert len({read(host).launch_id for host in hosts}) == 1


@pytest.mark.parametrize("ranks", [MVAPICH, PALS, OPENMPI])
def test_the_job_is_no_part_of_the_key_where_it_may_not_be_handed_on(ranks: dict[str, str]) -> None:
    assert read(ranks).launch_id == read(ranks | {"PBS_JOBID": "7.pbs"}).launch_id


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        (OPENMPI, "OMPI_COMM_WORLD_SIZE"),
        (OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK"),
        (PALS, "PMI_LOCAL_SIZE"),
        (FLUX, "FLUX_JOB_SIZE"),
        (HYDRA, "MPI_LOCALRANKID"),
    ],
)
def test_half_of_a_launchers_variables_are_refused_by_the_missing_one(environ: dict[str, str], missing: str) -> None:
    with pytest.raises(Failure, match=f"{missing} is not set") as caught:
        read({name: value for name, value in environ.items() if name != missing})
    assert caught.value.code == 76


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK must be below OMPI_COMM_WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "OMPI_COMM_WORLD_LOCAL_RANK must be below"),
        ({"OMPI_COMM_WORLD_RANK": "one"}, "OMPI_COMM_WORLD_RANK is not a whole number"),
        ({"OMPI_COMM_WORLD_SIZE": "-2"}, "OMPI_COMM_WORLD_SIZE is not a whole number"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "0"}, "OMPI_COMM_WORLD_LOCAL_RANK must be below"),
        ({"OMPI_COMM_WORLD_SIZE": "0"}, "OMPI_COMM_WORLD_RANK must be below"),
    ],
)
def test_impossible_numbers_are_refused_by_name(change: dict[str, str], named: str) -> None:
    with pytest.raises(Failure, match=named) as caught:
        read(OPENMPI | change)
    assert caught.value.code == 76


@pytest.mark.parametrize("name", per_rank.RANK_ONLY_VARIABLES)
def test_a_rank_without_a_number_of_ranks_is_refused(name: str) -> None:
    with pytest.raises(Failure, match="nothing tells how many ranks") as caught:
        detect_allocation({name: "1"}, LaunchOptions(), machine())
    assert f"unset {name}" in caught.value.fix


@pytest.mark.parametrize("size", ["ACME_SIZE", "ACME_WORLD_SIZE", "ACME_NPROCS"])
def test_a_rank_and_a_size_of_an_unknown_launcher_are_refused_with_the_way_out(size: str) -> None:
    with pytest.raises(Failure, match=f"ACME_RANK and {size}") as caught:
        detect_allocation({"ACME_RANK": "1", size: "8"}, LaunchOptions(), machine())
    assert "--nodes 8 --node-rank $ACME_RANK" in caught.value.fix
    assert "--nodes 1" in caught.value.fix


@pytest.mark.parametrize(
    "environ",
    [
        {"ACME_RANK": "1"},
        {"ACME_SIZE": "8"},
        {"ACME_RANK": "0", "ACME_SIZE": "1"},
        {"ACME_RANK": "9", "ACME_SIZE": "8"},
    ],
    ids=["rank-only", "size-only", "one", "no-rank-of-it"],
)
def test_a_laptops_odd_variables_are_nobodys_ranks(environ: dict[str, str]) -> None:
    assert detect_allocation(environ, LaunchOptions(), machine()).launcher == "local"
