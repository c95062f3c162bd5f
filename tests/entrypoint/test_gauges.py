"""Figures of a rank, written by one process and read by another."""

from __future__ import annotations

import math
import mmap
import os
import subprocess
import sys

import pytest
from processes import TIMEOUT_S

from entrypoint.gauges import (
    MAX_GPUS,
    PROCESS_FIELDS,
    RESOURCES_VARIABLE,
    ResourcePage,
    ResourceReader,
    attach_resources,
    num_fields,
)

FIGURES = [10.0, 15.0, 2.0**30, 2.0**31]
ATTACHED = """
import os
from entrypoint.gauges import attach_resources
page = attach_resources(os.environ)
page.ask(["one", "other"])
print(*page.read(0))
"""


@pytest.fixture
def page() -> ResourcePage:
    return ResourcePage()


@pytest.fixture
def gauges(page: ResourcePage) -> ResourceReader:
    return ResourceReader(mmap.mmap(page.descriptor, 4096))


def test_a_rank_that_has_not_asked_wants_nothing(page: ResourcePage) -> None:
    assert page.requested_gpus() is None


@pytest.mark.parametrize("gpus", [(), ("one",), tuple(f"{number:036d}" for number in range(MAX_GPUS))])
def test_a_rank_asks_for_its_gpus(page: ResourcePage, gauges: ResourceReader, gpus: tuple[str, ...]) -> None:
    gauges.ask(gpus)
    assert page.requested_gpus() == gpus


def test_more_gpus_than_there_is_room_for_are_left_out(page: ResourcePage, gauges: ResourceReader) -> None:
    gauges.ask([str(number) for number in range(MAX_GPUS + 1)])
    assert len(page.requested_gpus() or ()) == MAX_GPUS


def test_the_newest_figures_are_read_and_the_rest_is_unknown(page: ResourcePage, gauges: ResourceReader) -> None:
    for figures in ([0.0] * len(PROCESS_FIELDS), FIGURES):
        page.write(figures)
    assert list(gauges.read(0)) == FIGURES
    assert len(gauges.read(1)) == num_fields(1)
    assert all(map(math.isnan, gauges.read(1)[len(PROCESS_FIELDS) :]))


def test_figures_of_as_many_gpus_as_there_is_room_for_come_back(page: ResourcePage, gauges: ResourceReader) -> None:
    figures = tuple(float(number) for number in range(num_fields(MAX_GPUS)))
    page.write(figures)
    assert gauges.read(MAX_GPUS) == figures


def test_before_the_first_writing_nothing_is_known(gauges: ResourceReader) -> None:
    assert all(map(math.isnan, gauges.read(2)))


def test_while_figures_are_being_written_those_before_count(page: ResourcePage, gauges: ResourceReader) -> None:
    page.write(FIGURES)
    before = gauges.read(0)
    os.pwrite(page.descriptor, (2).to_bytes(8, "little"), 8 + MAX_GPUS * 48)
    os.pwrite(page.descriptor, b"torn", 8 + MAX_GPUS * 48 + 8)
    assert gauges.read(0) == before


@pytest.mark.parametrize("value", ["", "x", "9999", "-1"])
def test_without_a_parent_that_measures_nothing_is_known(value: str) -> None:
    alone = attach_resources({RESOURCES_VARIABLE: value})
    alone.ask(["one"])
    assert all(map(math.isnan, alone.read(1)))


def test_a_process_that_was_handed_the_page_asks_and_reads(page: ResourcePage) -> None:
    page.write(FIGURES)
    environ, command = {**os.environ, RESOURCES_VARIABLE: str(page.descriptor)}, [sys.executable, "-c", ATTACHED]
    said = subprocess.run(
        command, env=environ, pass_fds=(page.descriptor,), timeout=TIMEOUT_S, text=True, stdout=subprocess.PIPE
    ).stdout
    assert [float(word) for word in said.split()] == FIGURES
    assert page.requested_gpus() == ("one", "other")


def test_a_page_that_is_closed_takes_nothing_more(page: ResourcePage) -> None:
    page.close()
    with pytest.raises((ValueError, TypeError)):
        page.write(FIGURES)
