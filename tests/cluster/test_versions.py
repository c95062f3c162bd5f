"""Every way a program is started, on each Slurm version: docs/evidence/slurm.md says what is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from bed import Cluster
from matrix import Seen, needs_image, run_all, situations
from slurm_table import LAUNCH_CONFLICT, SUITES, Column, committed, three_nodes

# One Slurm in each run of CI; each older one with all its situations in one share.
MARKS = {"sid": [pytest.mark.every_run]} | {
    suite: [pytest.mark.together(f"Slurm of {suite}")] for suite in SUITES if suite != "sid"
}
EACH = pytest.mark.parametrize(
    "suite", [pytest.param(suite, id=version, marks=MARKS[suite]) for suite, version in SUITES.items()]
)
NAMES = pytest.mark.parametrize("name", situations())
# Where tasks are placed: all but the situations that only have shells, train, or are refused.
TASKS = [(name, command) for name, command in situations().items() if "./probe task" in command and name != "cleanenv"]
EACH_PLACED = pytest.mark.parametrize(
    ("suite", "name"),
    [
        pytest.param(suite, name, id=f"{name}-{version}", marks=MARKS[suite])
        for suite, version in SUITES.items()
        for name, command in TASKS
        if suite == "sid" or not needs_image(command)
    ],
)


@pytest.fixture(scope="session")
def sid(cluster: Cluster) -> Column:
    """Slurm 26.05, with the image."""
    return Column(run_all(cluster, image=True))


@pytest.fixture(scope="session")
def trixie(older_nodes: Callable[[str], None]) -> Iterator[Column]:
    """Slurm 24.11."""
    older_nodes("trixie")
    yield from without_image("trixie")


@pytest.fixture(scope="session")
def bookworm(older_nodes: Callable[[str], None]) -> Iterator[Column]:
    """Slurm 22.05."""
    older_nodes("bookworm")
    yield from without_image("bookworm")


def without_image(suite: str) -> Iterator[Column]:
    """The suite has no Apptainer: the nodes' own Python runs the checkout."""
    with three_nodes(suite) as cluster:
        yield Column(run_all(cluster, image=False))


@pytest.fixture
def column(suite: str, request: pytest.FixtureRequest) -> Column:
    """What the version has shown."""
    found: Column = request.getfixturevalue(suite)
    return found


def tasks(column: Column, name: str) -> list[list[Seen]]:
    """The tasks that know their place, one list for each job of the situation."""
    placed = [one for one in column.seen(name, "task") if not one.refused]
    assert placed
    return [[one for one in placed if one.number == number] for number in sorted({one.number for one in placed})]


@EACH
@NAMES
def test_a_situation_is_as_the_table_says(column: Column, suite: str, name: str) -> None:
    row = committed("situations")[name]
    assert column.cell(name) == row[1 + list(SUITES).index(suite)]


@EACH_PLACED
def test_ranks_are_all_there_once(column: Column, name: str) -> None:
    for job in tasks(column, name):
        first = [one.told["world"]["rank"] for one in job]
        ranks = [rank + i for rank, one in zip(first, job, strict=True) for i in range(one.told["spawn"])]
        assert ranks == list(range(job[0].told["world"]["world_size"]))


@EACH_PLACED
def test_places_are_those_of_the_hosts(column: Column, name: str) -> None:
    for job in tasks(column, name):
        ranks_on = Counter({host: 0 for host in {one.host for one in job}})
        for one in job:
            world = one.told["world"]
            assert world["local_rank"] == ranks_on[one.host]
            ranks_on[one.host] += one.told["spawn"]
        for one in job:
            assert one.told["world"]["local_world_size"] == ranks_on[one.host]
        assert len({(one.host, one.told["world"]["node_rank"]) for one in job}) == len(ranks_on)
        assert job[0].told["world"]["num_nodes"] == len(ranks_on)


@EACH_PLACED
def test_all_ranks_meet_at_the_host_of_rank_0(column: Column, name: str) -> None:
    for job in tasks(column, name):
        where = {(one.told["world"]["master_addr"], one.told["world"]["master_port"]) for one in job}
        addresses = {address for address, _ in where}
        assert len(where) == 1
        # mpirun's tasks tell each other when they start: test_training.py
        assert addresses <= ({""} if name == "openmpi-slurm" else {job[0].host, "127.0.0.1", "localhost"})


@EACH
def test_tasks_of_an_array_are_jobs_of_their_own(column: Column) -> None:
    jobs = tasks(column, "array")
    assert len(jobs) == 2
    assert len({job[0].told["world"]["master_port"] for job in jobs}) == 2


@EACH
def test_cyclic_ranks_take_turns(column: Column) -> None:
    (job,) = tasks(column, "cyclic")
    assert [one.told["world"]["node_rank"] for one in job] == [0, 1, 0, 1]


@EACH
def test_a_refusal_says_what_to_do(column: Column, suite: str) -> None:
    written = {(what, fix): names.split(", ") for what, (fix, names) in committed("refusals").items()}
    commands = situations()
    here = {
        text: [n for n in names if suite == "sid" or not needs_image(commands[n])] for text, names in written.items()
    }
    assert column.refusals() == {text: names for text, names in here.items() if names}


@EACH
@pytest.mark.parametrize("name", LAUNCH_CONFLICT)
def test_slurm_does_what_the_table_says(column: Column, suite: str, name: str) -> None:
    assert column.fact(name) == committed("facts")[name][list(SUITES).index(suite)]


@EACH
def test_the_suite_still_has_this_slurm(column: Column, suite: str) -> None:
    assert f" {SUITES[suite]}." in (column.folder / "version").read_text()


def test_only_what_needs_the_image_was_not_run_without() -> None:
    missing = {name for name, row in committed("situations").items() if "needs the image" in row}
    assert missing == {name for name, command in situations().items() if needs_image(command)}


def test_the_page_lists_the_situations_and_no_others() -> None:
    assert list(committed("situations")) == list(situations())
    assert list(committed("facts")) == list(LAUNCH_CONFLICT)
