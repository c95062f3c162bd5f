"""The records of launchers and schedulers: what holds for each of them."""

from __future__ import annotations

import pytest
from machines import machine
from synthetic import PER_NODE, PER_RANK

from entrypoint.errors import Failure
from entrypoint.job_script import OTHER_SCHEDULERS
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions
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
