"""Figures of a rank, written by one process and read by another."""

from __future__ import annotations

import math
import mmap
import os
import subprocess
import sys

import pytest
from processes import TIMEOUT_S

from entrypoint.gauges import MOST, PROCESS, VARIABLE, Gauges, Page, attach, width

FIGURES = [10.0, 15.0, 2.0**30, 2.0**31]
ATTACHED = """
import os
from entrypoint.gauges import attach
page = attach(os.environ)
page.ask(["one", "other"])
print(*page.read(0))
"""


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def gauges(page: Page) -> Gauges:
    return Gauges(mmap.mmap(page.descriptor, 4096))


def test_a_rank_that_has_not_asked_wants_nothing(page: Page) -> None:
    assert page.asked() is None


@pytest.mark.parametrize("gpus", [(), ("one",), tuple(f"{number:036d}" for number in range(MOST))])
def test_a_rank_asks_for_its_gpus(page: Page, gauges: Gauges, gpus: tuple[str, ...]) -> None:
    gauges.ask(gpus)
    assert page.asked() == gpus


def test_more_gpus_than_there_is_room_for_are_left_out(page: Page, gauges: Gauges) -> None:
    gauges.ask([str(number) for number in range(MOST + 1)])
    assert len(page.asked() or ()) == MOST


def test_the_newest_figures_are_read_and_the_rest_is_unknown(page: Page, gauges: Gauges) -> None:
    for figures in ([0.0] * len(PROCESS), FIGURES):
        page.write(figures)
    assert list(gauges.read(0)) == FIGURES
    assert len(gauges.read(1)) == width(1)
    assert all(map(math.isnan, gauges.read(1)[len(PROCESS) :]))


def test_figures_of_as_many_gpus_as_there_is_room_for_come_back(page: Page, gauges: Gauges) -> None:
    figures = tuple(float(number) for number in range(width(MOST)))
    page.write(figures)
    assert gauges.read(MOST) == figures


def test_before_the_first_writing_nothing_is_known(gauges: Gauges) -> None:
    assert all(map(math.isnan, gauges.read(2)))


def test_while_figures_are_being_written_those_before_count(page: Page, gauges: Gauges) -> None:
    page.write(FIGURES)
    before = gauges.read(0)
    os.pwrite(page.descriptor, (2).to_bytes(8, "little"), 8 + MOST * 48)
    os.pwrite(page.descriptor, b"torn", 8 + MOST * 48 + 8)
    assert gauges.read(0) == before


@pytest.mark.parametrize("value", ["", "x", "9999", "-1"])
def test_without_a_parent_that_measures_nothing_is_known(value: str) -> None:
    alone = attach({VARIABLE: value})
    alone.ask(["one"])
    assert all(map(math.isnan, alone.read(1)))


def test_a_process_that_was_handed_the_page_asks_and_reads(page: Page) -> None:
    page.write(FIGURES)
    environ, command = {**os.environ, VARIABLE: str(page.descriptor)}, [sys.executable, "-c", ATTACHED]
    said = subprocess.run(
        command, env=environ, pass_fds=(page.descriptor,), timeout=TIMEOUT_S, text=True, stdout=subprocess.PIPE
    ).stdout
    assert [float(word) for word in said.split()] == FIGURES
    assert page.asked() == ("one", "other")


def test_a_page_that_is_closed_takes_nothing_more(page: Page) -> None:
    page.close()
    with pytest.raises((ValueError, TypeError)):
        page.write(FIGURES)
