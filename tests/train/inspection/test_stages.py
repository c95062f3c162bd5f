"""Each stage of a training, timed alone."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from images import write_classes

from entrypoint import Failure
from train.inspection import stages
from train.inspection.bottleneck import Profile
from train.settings import schema

TINY = ("data.samples=40", "data.image_size=8", "data.classes=2", "model.args.width=4")


@pytest.fixture(autouse=True)
def _three_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SECONDS", 0.0)


def profile(*settings: str, micro: int = 8) -> Profile:
    return stages.measure(schema.load(None, [*TINY, *settings]), beside=None, device="cpu", ranks=1, micro=micro)


def test_all_stages_of_the_cpu_are_timed_with_the_micro_batch() -> None:
    found = profile()
    assert (found.read.batch, found.augment.batch, found.step.batch, found.copy) == (8, 8, 8, None)
    assert all(len(stage.seconds) == 3 for stage in (found.read, found.augment, found.step))
    assert (found.workers, found.images, found.bytes_, found.fits) == (None, 40, 40 * 8 * 8 * 3, True)


def test_workers_are_those_that_a_training_would_start() -> None:
    assert profile("data.loader=workers", "data.workers=3").workers == 3


def test_a_micro_batch_may_be_larger_than_the_data() -> None:
    found = profile(micro=100)
    assert (found.read.batch, found.step.batch) == (32, 100)


@pytest.mark.parametrize(("more", "cacheable"), [((), True), (("data.cache={}/c",), False)])
def test_a_folder_may_be_cached_once(more: tuple[str, ...], cacheable: bool, tmp_path: Path) -> None:
    root = write_classes(tmp_path / "d", ant=5, bee=5)
    found = profile("data.name=folder", f"data.root={root}", *(word.format(tmp_path) for word in more))
    assert found.cacheable is cacheable


def test_images_that_cannot_be_read_are_a_failure(tmp_path: Path) -> None:
    for path in write_classes(tmp_path, ant=2, bee=2).rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(Failure, match="cannot be read"):
        profile("data.name=folder", f"data.root={tmp_path}", "data.max_bad_images=9")


def test_a_step_that_does_not_fit_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("2 GiB wanted")

    monkeypatch.setattr(stages.optimizers, "build", lambda *_: SimpleNamespace(step=full))
    with pytest.raises(Failure, match="does not fit") as caught:
        profile()
    assert (caught.value.code, caught.value.fix) == (71, "set train.micro_batch_size below 8")


def test_a_stage_is_timed_until_its_seconds_are_over_after_one_time_that_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "SECONDS", 5.0)
    ticks, done = itertools.count(), []
    found = stages.timed(lambda: done.append(1), 4, lambda: float(next(ticks)))
    assert (len(done), list(found.seconds)) == (6, [1.0] * 5)
    assert replace(found, batch=8).images_per_s == 8
