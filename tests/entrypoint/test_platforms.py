"""Each record of a launcher or scheduler holds, and every cell of the table of tested launchers is a test."""

from __future__ import annotations

import pytest
from families import FAMILIES, SEVERAL, SHAPES, Shape
from machines import fake_gpus, machine
from synthetic import PER_NODE, PER_RANK

from entrypoint.errors import Failure
from entrypoint.job_script import OTHER_SCHEDULERS
from entrypoint.launchers import batch_script, detect_allocation, per_node, per_rank
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan, plan_allocation
from entrypoint.platforms import HOST_FILES, PLATFORMS, VARIABLES, Platform

NO_NUMBERS = ("own_host", "master")


def environ_of(platform: Platform) -> dict[str, str]:
    return (PER_RANK | PER_NODE)[platform.name]


BAD_NUMBERS = [
    pytest.param(platform, variable, value, id=f"{platform.name} {variable}={value[:3]}")
    for platform in PLATFORMS
    if platform.starts in ("rank", "node") and platform.name != "pet"
    for fact, variable in platform.variables.items()
    if fact not in NO_NUMBERS
    for value in ("-1", "x", "1.5", "\u0661", "9" * 5000)
]


@pytest.mark.parametrize(("platform", "variable", "value"), BAD_NUMBERS)
def test_a_number_that_cannot_be_read_is_refused_by_its_variable(platform: Platform, variable: str, value: str) -> None:
    with pytest.raises(Failure, match=f"{variable} is not a whole number") as caught:
        detect_allocation(environ_of(platform) | {variable: value}, LaunchOptions(), machine())
    assert caught.value.code == 76
    assert f"unset {variable}" in caught.value.fix


def test_a_name_is_unique_among_what_starts_the_same() -> None:
    names = [(platform.starts, platform.name) for platform in PLATFORMS]
    assert len(names) == len(set(names))


def test_the_schedulers_of_job_scripts_have_a_record() -> None:
    assert set(OTHER_SCHEDULERS) <= {platform.name for platform in PLATFORMS}


def test_what_a_record_names_is_known_to_the_tests_clean_up() -> None:
    assert {"AWS_BATCH_JOB_ID", "OMPI_COMM_WORLD_RANK", "NHOSTS", "SLURM_JOB_END_TIME", *HOST_FILES} <= VARIABLES
    assert "" not in VARIABLES


CELLS = [(name, shape) for name, family in FAMILIES.items() for shape in SHAPES if shape in family.shapes]


def planned(name: str, shape: Shape) -> Plan:
    """The plan of the last task of a node with a GPU for each rank."""
    nodes, many = shape
    here, environ = (
        machine(gpus=fake_gpus(SEVERAL if many else 1), hostname=f"node{nodes:02}"),
        FAMILIES[name].shapes[shape],
    )
    options = LaunchOptions(procs_per_node=SEVERAL if many else 1) if name == "Kubeflow" else LaunchOptions()
    return plan_allocation(detect_allocation(environ, options, here), options, here, environ)


@pytest.mark.parametrize(("name", "shape"), CELLS)
def test_the_last_rank_of_every_shape_knows_its_place(name: str, shape: Shape) -> None:
    nodes, ranks = shape[0], SEVERAL if shape[1] else 1
    plan = planned(name, shape)
    last = plan.worlds()[-1]
    assert plan.launcher == FAMILIES[name].launcher
    assert (last.rank, last.world_size) == (nodes * ranks - 1, nodes * ranks)
    if name != "other PMI":  # these tell each other the rest
        assert (last.node_rank, last.num_nodes) == (nodes - 1, nodes)
        assert (last.local_rank, last.local_world_size) == (ranks - 1, ranks)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_launcher_did_not_start_is_no_silent_world_of_its_own(name: str) -> None:
    (environ, files), answer = FAMILIES[name].past, FAMILIES[name].answer
    if answer == "refused":
        with pytest.raises(Failure) as caught:
            detect_allocation(environ, LaunchOptions(), machine(host_files=files))
        assert caught.value.code == 76
    else:
        assert detect_allocation(environ, LaunchOptions(), machine(host_files=files)).warnings


def test_every_launcher_has_a_row() -> None:
    names = {family.launcher for family in FAMILIES.values()}
    assert names >= {*per_rank.LAUNCHERS, *per_node.PLATFORMS, "torchrun"}
    scripts = [family.past[0] for family in FAMILIES.values() if family.launcher == "local"]
    for scheduler in batch_script.SCHEDULERS.values():
        shown_by = set(batch_script.detection_variables(scheduler))
        assert any(shown_by & set(environ) for environ in scripts), scheduler.title
