"""`entrypoint doctor` in a container: what it says of a good one, of a poor one, and before a training in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from containers import Ended, Image, mounted, writable

pytestmark = pytest.mark.timeout(600)  # the first one may have to build the image

SHM = "--shm-size=16m"
TIMED = 'TIMEFORMAT="took %U %S"; time "$@"'  # its own; checks that wait have 8 seconds besides


def doctor(image: Image, *words: str, options: tuple[str, ...] = ()) -> Ended:
    """Without a GPU: there is none."""
    return image.run("entrypoint", "doctor", "--device", "cpu", *words, options=options)


def told(ended: Ended) -> dict[str, dict[str, Any]]:
    """The findings of --json by name; what it says beside that would not be JSON."""
    return {finding["name"]: finding for finding in json.loads(ended.output)["findings"]}


def test_in_a_good_container_nothing_would_break_a_training(image: Image, tmp_path: Path) -> None:
    place = mounted(writable(tmp_path / "work"), "/workspace")
    ended = doctor(image, options=(place, "--shm-size=1g"))
    assert (ended.code, "Traceback" in ended.output, ended.lines("FAIL")) == (0, False, []), ended.output
    assert ended.output.splitlines()[-1].startswith(("all ", "nothing would break a training here"))


def test_it_computes_for_less_than_two_seconds(image: Image) -> None:
    ended = image.run("bash", "-c", TIMED, "bash", "entrypoint", "doctor", "--device", "cpu")
    taken = re.search(r"took ([\d.]+) ([\d.]+)$", ended.output)
    assert taken, ended.output
    assert sum(map(float, taken.groups())) < 2


def test_a_poor_container_is_told_with_the_options_that_mend_it(image: Image, tmp_path: Path) -> None:
    place = mounted(writable(tmp_path / "work"), "/workspace") + ":ro"
    options = (place, SHM, "--user=54321:54321", "--env=HOME=/nonexistent", "--ulimit=nofile=512:512")
    ended = doctor(image, "--json", "--output", "/workspace/runs", options=options)
    found = told(ended)
    assert (ended.code, found["output"]["state"], "docker run -v" in found["output"]["fix"]) == (78, "fail", True)
    assert (found["shared memory"]["state"], "--shm-size" in found["shared memory"]["fix"]) == ("fail", True)
    assert (found["home"]["state"], found["open files"]["state"], found["user"]["state"]) == ("warn", "warn", "ok")


def test_two_ranks_in_a_container_without_a_network_add_up_numbers(image: Image) -> None:
    ended = doctor(image, "--full", "--procs-per-node", "2", options=("--shm-size=1g",))
    (line,) = ended.lines("ok    all-reduce")
    assert "2 ranks over gloo (TCP on lo): every sum right" in line


@pytest.fixture
def begun(image: Image, tmp_path: Path) -> Ended:
    """A training whose data workers have little shared memory, but enough for its small images."""
    place = mounted(writable(tmp_path / "work"), "/workspace")
    small = ("data.samples=64", "data.image_size=8", "train.global_batch_size=16", "train.max_steps=1")
    return image.run("--device", "cpu", *small, "data.loader=workers", "data.workers=1", options=(place, SHM))


def test_a_training_says_first_what_is_not_ok_and_goes_on(begun: Ended) -> None:
    first, second, *_ = begun.output.splitlines()
    assert first.startswith("FAIL  shared memory  /dev/shm has 16 of 16 MiB free, for 1 rank here"), begun.output
    assert second.strip().startswith("fix: docker run --shm-size=8g")
    assert begun.code == 0
