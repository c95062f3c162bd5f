"""Variables of two launchers at once: never a world of one where one of them says that there are more."""

from __future__ import annotations

import random
from typing import Any

import pytest
from machines import captured, machine
from synthetic import PER_NODE, PER_RANK, PET, SCRIPTS

from entrypoint.errors import Failure
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions

TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node01"}
TORCHRUN |= {"MASTER_PORT": "29500"}
STEP = captured("per-gpu/task-3@node02")
BATCH = captured("per-gpu/batch-0@node01")
# Name -> variables and host files, each of a job with several tasks or nodes.
SOURCES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "torchrun": (TORCHRUN, {}),
    "step": (STEP, {}),
    "batch": (BATCH, {}),
    "pet": (PET, {}),
    **{name: (environ, {}) for name, environ in (PER_RANK | PER_NODE).items()},
    **{f"script-{name}": (environ, files) for name, (environ, files, _) in SCRIPTS.items()},
}
SINGLE: dict[str, dict[str, str]] = {
    "torchrun": TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    "openmpi": {name: "1" if name.endswith("SIZE") else "0" for name in PER_RANK["openmpi"]},
    "hydra": {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
    "pet": {"PET_NNODES": "1"},
    "nothing": {},
}


def num_tasks(environ: dict[str, str], files: dict[str, str]) -> int | None:
    """The number of tasks of the detected world; None if it is refused."""
    try:
        return detect_allocation(environ, LaunchOptions(), machine(host_files=files)).num_tasks
    except Failure:
        return None


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("inner", SINGLE)
def test_a_single_task_inside_a_job_of_several_is_refused(name: str, inner: str) -> None:
    environ, files = SOURCES[name]
    if not set(environ) & set(SINGLE[inner]):
        assert num_tasks(environ | SINGLE[inner], files) != 1


@pytest.mark.parametrize("seed", range(200))
def test_a_mixture_of_two_launchers_is_never_a_world_of_one(seed: int) -> None:
    draw = random.Random(seed)
    names = draw.sample(sorted(SOURCES), 2)
    environ: dict[str, Any] = {}
    for name in names:
        variables = list(SOURCES[name][0].items())
        environ |= dict(draw.sample(variables, draw.randint(1, len(variables))) if seed % 2 else variables)
    files = SOURCES[names[0]][1] | SOURCES[names[1]][1]
    found = num_tasks(environ, files)
    assert found != 1 or not says_more_than_one(environ, files), names


def says_more_than_one(environ: dict[str, str], files: dict[str, str]) -> bool:
    """Whether a size or a list of hosts names more than one: written here again, without the tables."""
    sizes = [value for name, value in environ.items() if name.endswith(("SIZE", "NNODES", "NUM_TASKS", "NPROCS"))]
    several = any(value.isdigit() and int(value) > 1 for value in sizes)
    return several or any(len(set(text.split())) > 1 for text in files.values())
