"""Times of stages become the limit and what to change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bench.data_profile import PipelineProfile, StageTiming


def stage(images_per_s: float) -> StageTiming:
    """Ten images at a time."""
    return StageTiming(batch=10, seconds=[10 / images_per_s])


def profile(
    *, read: float = 100, augment: float = 1e5, copy: float | None = None, step: float = 1000, **more: Any
) -> PipelineProfile:
    facts: dict[str, Any] = {
        "title": "folder, 32 x 32 x 3, micro batch 10",
        "device": "CPU",
        "cores": 16,
        "workers": 4,
        "images": 50_000,
        "bytes_": 154_000_000,
        "fits": False,
        "cacheable": False,
    }
    sent = None if copy is None else stage(copy)
    return PipelineProfile(read=stage(read), augment=stage(augment), copy=sent, step=stage(step), **facts | more)


LIMITS = {
    "too few workers": (profile(), "read"),
    "enough workers": (profile(workers=11), "step"),
    "all in memory": (profile(workers=None), "step"),
    "no workers": (profile(workers=0), "read"),
    "no workers, and a slow step": (profile(workers=0, step=10), "step"),
    "heavy augmentation": (profile(workers=None, augment=500), "augment"),
    "a slow bus": (profile(workers=None, copy=300), "copy"),
    "a slow bus, and slower reading": (profile(copy=600), "read"),
    "more workers than processors": (profile(cores=2, workers=40), "read"),
}


@pytest.mark.parametrize(("pipeline", "limit"), LIMITS.values(), ids=LIMITS.keys())
def test_the_stage_that_all_wait_for_is_named(pipeline: PipelineProfile, limit: str) -> None:
    assert pipeline.limit == limit


def test_workers_read_beside_the_step_and_a_rank_without_them_does_one_after_the_other() -> None:
    assert profile(augment=1e12).images_per_s == pytest.approx(400)
    assert profile(augment=1e12, workers=0).images_per_s == pytest.approx(1 / (1 / 100 + 1 / 1000))
    assert profile(augment=1e12, workers=None).images_per_s == pytest.approx(1000)


def test_workers_read_no_faster_than_there_are_processors() -> None:
    assert profile(read=1000, step=5000, cores=2, workers=8).images_per_s == pytest.approx(2000)


ADVICE: dict[str, tuple[PipelineProfile, list[str]]] = {
    "memory first": (
        profile(fits=True),
        ["data.loader=memory: 50,000 images, 154 MB", "data.workers=10: they read 1,000"],
    ),
    "a cache": (profile(cacheable=True), ["data.cache=FOLDER", "data.workers=10"]),
    "processors": (profile(cores=4, workers=3), ["more processors for a rank: 11 instead of 4"]),
    "the GPU's decoder": (profile(cores=4, workers=3, decodable=True), ["data.decode=gpu", "more processors"]),
    "fewer workers": (profile(cores=64, workers=40), ["4.0 times as fast", "data.workers=10 is enough"]),
    "nothing": (profile(workers=None), ["nothing about how data is read: all of it"]),
    "a shorter step": (
        profile(workers=None, faster_settings=["train.compile=default"]),
        ["nothing", "train.compile=default"],
    ),
    "a bus": (profile(workers=None, copy=300), ["nothing", "a smaller data.image_size"]),
    "augmentation": (profile(workers=None, augment=500), ["nothing", "takes 67% of the device's time"]),
}


@pytest.mark.parametrize(("pipeline", "lines"), ADVICE.values(), ids=ADVICE.keys())
def test_what_to_change_is_said_with_numbers(pipeline: PipelineProfile, lines: list[str]) -> None:
    advice = list(pipeline.advice())
    assert len(advice) == len(lines)
    assert all(words in line for words, line in zip(lines, advice, strict=True)), advice


def test_the_table_has_a_line_for_each_stage_that_was_measured() -> None:
    lines = profile(copy=2000).as_text().splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["read", "augment", "copy", "step"]
    assert lines[6].startswith("limit: read; a rank trains about 400 images/s")
    assert "copy" not in profile().as_text()


def test_times_that_are_too_unlike_are_said_to_be() -> None:
    slow = replace(profile(), read=StageTiming(batch=1, seconds=[1.0, 9.0]))
    assert "note: read was unsteady: 1,000.00 to 9,000.00 ms a batch" in slow.as_text()
    assert "note" not in profile().as_text()


def test_json_has_the_same_with_the_spread() -> None:
    told = json.loads(profile().as_json())
    assert (told["limit"], set(told["stages"])) == ("read", {"read", "augment", "step"})
    assert told["stages"]["step"]["images_per_s"] == pytest.approx(1000)


def test_a_rate_is_the_median_s() -> None:
    assert StageTiming(batch=10, seconds=[1.0, 9.0, 2.0]).images_per_s == 5
