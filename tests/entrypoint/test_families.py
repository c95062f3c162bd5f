"""The table of docs/evidence/detection.md: every cell is a test, and every launcher has a row."""

from __future__ import annotations

import re

import pytest
from families import BEGIN, END, FAMILIES, PAGE, SEVERAL, SHAPES, Shape, table
from machines import fake_gpus, machine

from entrypoint.errors import Failure
from entrypoint.launchers import batch_script, detect_allocation, per_node, per_rank
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan, plan_allocation
from entrypoint.platforms import PLATFORMS

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


def test_the_page_lists_the_launchers_in_the_order_of_the_records() -> None:
    text = (PAGE.parents[1] / "detection.md").read_text()
    columns = re.findall(r"^\| \d+ \| [^|]+\| [^|]+ \| (`[^|]+) \|", text, re.M)
    listed = [name for column in columns for name in re.findall(r"`([\w-]+)`", column)]
    expected = [each.name for each in PLATFORMS if each.starts in ("rank", "node")]
    assert [name for name in listed if name in expected] == expected
    for each in PLATFORMS:
        variables = {*each.hosts, *each.host_files, *each.counts} if each.starts == "script" else set()
        assert all(f"`{name}`" in text for name in variables), each.name


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table(), "python tests/support/families.py"
