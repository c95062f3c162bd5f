"""Launchers that start one process per rank, with and without Slurm around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from machines import captured, machine
from synthetic import FLUX, HYDRA, INTEL, JSRUN, MVAPICH, OPENMPI, OPENMPI_TWO_NODES, PALS, PER_RANK

from entrypoint.errors import Failure
from entrypoint.launchers import detect_allocation, per_rank
from entrypoint.launchers.allocation import Allocation
from entrypoint.options import LaunchOptions
from entrypoint.platforms import Platform


def read(environ: dict[str, str]) -> Allocation:
    launcher = per_rank.find_launcher(environ)
    assert launcher is not None
    return per_rank.read_allocation(environ, machine(), launcher)


def name_of_launcher(environ: dict[str, str]) -> str | None:
    launcher = per_rank.find_launcher(environ)
    return launcher and launcher.name


def test_every_launcher_of_the_table_has_a_case_here() -> None:
    assert list(PER_RANK) == list(per_rank.LAUNCHERS)


@pytest.mark.parametrize("name", PER_RANK)
def test_the_ranks_of_every_launcher_are_read(name: str) -> None:
    allocation = read(PER_RANK[name])
    assert (allocation.launcher, allocation.task, allocation.num_tasks) == (name, 3, 4)


@pytest.mark.parametrize("name", sorted(per_rank.LAUNCHERS.keys() - {"pmi"}))
def test_the_place_within_a_node_is_read_where_the_launcher_tells_it(name: str) -> None:
    allocation = read(PER_RANK[name])
    assert (allocation.local_task, allocation.tasks_on_node, allocation.node_rank, allocation.num_nodes) == (1, 2, 1, 2)


@pytest.mark.parametrize("environ", PER_RANK.values(), ids=PER_RANK)
def test_several_nodes_without_an_address_tell_each_other_their_hosts(environ: dict[str, str]) -> None:
    assert read(environ).exchanges_hosts


def test_one_node_meets_on_loopback() -> None:
    assert (read(OPENMPI).num_nodes, read(OPENMPI).master_addr) == (1, "127.0.0.1")
    assert not read(OPENMPI).exchanges_hosts


@pytest.mark.parametrize("environ", PER_RANK.values(), ids=PER_RANK)
def test_an_address_that_only_some_tasks_may_have_decides_nothing_else(environ: dict[str, str]) -> None:
    with_address, without = (
        detect_allocation(environ | address, LaunchOptions(), machine()) for address in ({"MASTER_ADDR": "node01"}, {})
    )
    assert with_address.master_addr == "node01"
    assert (with_address.exchanges_hosts, with_address.launch_id) == (without.exchanges_hosts, without.launch_id)


# Of four ranks three are on the first node and one is on the second.
UNEVEN = {
    rank: OPENMPI_TWO_NODES
    | {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": local, "OMPI_COMM_WORLD_LOCAL_SIZE": size}
    for rank, local, size in (("0", "0", "3"), ("2", "2", "3"), ("3", "0", "1"))
}


@pytest.mark.parametrize("environ", UNEVEN.values(), ids=UNEVEN)
def test_every_task_of_an_uneven_launch_tells_its_host(environ: dict[str, str]) -> None:
    assert read(environ).exchanges_hosts


def test_inside_slurm_mpiruns_tasks_tell_each_other_their_hosts_too() -> None:
    """It may use some of the job's nodes, in another order than the list."""
    for environ in (*UNEVEN.values(), OPENMPI_TWO_NODES):
        allocation = read(environ | {"SLURM_NODELIST": "node[01-03]"})
        assert (allocation.hosts, allocation.master_addr, allocation.exchanges_hosts) == ((), "", True)


def test_ranks_that_mpirun_starts_over_ssh_in_a_slurm_job_have_the_launch_id_of_the_others() -> None:
    launch_ids = {
        read(OPENMPI_TWO_NODES | {"PMIX_NAMESPACE": "a@1"} | job).launch_id for job in ({}, {"SLURM_JOB_ID": "7"})
    }
    assert len(launch_ids) == 1


def test_flux_places_its_ranks_on_nodes_of_its_choice_inside_slurm() -> None:
    assert read(FLUX | {"SLURM_NODELIST": "node[01-02]"}).exchanges_hosts


@pytest.mark.parametrize("name", ["PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE"])
def test_a_list_of_hosts_that_only_some_nodes_may_have_changes_nothing(name: str) -> None:
    launcher = per_rank.find_launcher(INTEL)
    assert launcher is not None
    listed = per_rank.read_allocation(INTEL, machine(host_files={name: "node07 8\nnode01 8\n"}), launcher)
    assert listed == per_rank.read_allocation(INTEL, machine(), launcher)


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


def contradictions(platform: Platform) -> Iterator[tuple[dict[str, str | None], str]]:
    """Changes of a launcher's environment, and what the refusal of each says."""
    names, environ = platform.variables, PER_RANK[platform.name]
    for missing in (names[fact] for fact in names if fact != "rank"):
        yield {missing: None}, f"variables are missing: .*{missing}"
    size = names["world_size"]
    pairs = [(names["rank"], size)]
    if "local_world_size" in names:
        pairs.append((names["local_rank"], names["local_world_size"]))
        yield {names["local_world_size"]: "5"}, f"{names['local_world_size']} must not be above {size}"
    for number, limit in pairs:
        yield {number: environ[limit]}, f"{number} must be below {limit}"
        yield {number: "one"}, f"{number} is not a whole number"
        yield {limit: "0"}, f"{number} must be below"
        yield {limit: "-2"}, f"{limit} is not a whole number"


@pytest.mark.parametrize("name", PER_RANK)
def test_variables_that_are_missing_or_contradict_each_other_are_refused_by_name(name: str) -> None:
    for change, words in contradictions(per_rank.LAUNCHERS[name]):
        changed = {variable: value for variable, value in (PER_RANK[name] | change).items() if value is not None}
        with pytest.raises(Failure, match=words) as caught:
            read(changed)
        assert caught.value.code == 76


@pytest.mark.parametrize("name", per_rank.RANK_ONLY_VARIABLES)
def test_a_rank_without_a_number_of_ranks_is_refused(name: str) -> None:
    with pytest.raises(Failure, match=f"{name} shows .* nothing tells how many ranks") as caught:
        detect_allocation({name: "0"}, LaunchOptions(), machine())
    assert caught.value.code == 76
    assert f"unset {name}" in caught.value.fix


@pytest.mark.parametrize(
    ("rank", "size"),
    [
        ("ACME_RANK", "ACME_SIZE"),
        ("ACME_RANK", "ACME_WORLD_SIZE"),
        ("ACME_RANK", "ACME_NPROCS"),
        ("ACME_REPLICA_RANK", "ACME_REPLICA_COUNT"),
        ("ACME_INDEX", "ACME_TOTAL"),
        ("ACME_TASK_ID", "ACME_NUM"),
        ("ACME_NODE_INDEX", "ACME_NUM_NODES"),
        ("ACME_NODE_RANK", "ACME_NNODES"),
        ("NODE_RANK", "NNODES"),
        ("NODE_RANK", "NUM_NODES"),
        ("NODE_RANK", "NODE_COUNT"),
        ("NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE"),
    ],
)
def test_a_rank_and_a_size_of_an_unknown_launcher_are_refused_with_the_way_out(rank: str, size: str) -> None:
    with pytest.raises(Failure, match=f"{rank} and {size}") as caught:
        detect_allocation({rank: "1", size: "8"}, LaunchOptions(), machine())
    assert "--nodes NODES --node-rank K" in caught.value.fix
    assert "--nodes 1" in caught.value.fix
    assert f"unset {rank}" in caught.value.fix


def test_the_last_task_of_a_launcher_that_counts_from_1_is_refused_too() -> None:
    with pytest.raises(Failure, match="ACME_INDEX and ACME_COUNT"):
        detect_allocation({"ACME_INDEX": "4", "ACME_COUNT": "4"}, LaunchOptions(), machine())


def test_jsrun_on_a_job_of_one_node_and_a_launch_node_trains() -> None:
    alone = {name: value for name, value in JSRUN.items() if name != "PMIX_RANK"}
    alone |= {"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "1"}
    alone |= {"JSM_NAMESPACE_LOCAL_RANK": "0", "JSM_NAMESPACE_LOCAL_SIZE": "1"}
    allocation = detect_allocation(alone | {"LSB_MCPU_HOSTS": "batch5 1 h41n04 42"}, LaunchOptions(), machine())
    assert (allocation.launcher, allocation.num_tasks) == ("jsrun", 1)


@pytest.mark.parametrize(
    "environ",
    [
        {"ACME_RANK": "1"},
        {"ACME_SIZE": "8"},
        {"ACME_RANK": "0", "ACME_SIZE": "1"},
        {"ACME_RANK": "9", "ACME_SIZE": "8"},
        {"NODE_RANK": "0", "NNODES": "1"},
        {"NNODES": "8"},
        {"AWS_BATCH_JOB_ARRAY_INDEX": "1", "AWS_BATCH_JOB_ARRAY_SIZE": "8"},
        {"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "4"},
        {"NODE_INDEX": "1", "SIZE": "8", "COUNT": "9"},
        {"KNAPSACK_PRO_CI_NODE_INDEX": "1", "KNAPSACK_PRO_CI_NODE_TOTAL": "4"},
        {"CLOUD_RUN_TASK_INDEX": "1", "CLOUD_RUN_TASK_COUNT": "4"},
        {"GPU_INDEX": "1", "GPU_COUNT": "4"},
    ],
    ids=lambda environ: " ".join(environ),
)
def test_a_laptops_odd_variables_are_nobodys_ranks(environ: dict[str, str]) -> None:
    assert detect_allocation(environ, LaunchOptions(), machine()).launcher == "local"
