"""Each stage of a training is timed alone, and its times become the limit and what to change."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from images import write_classes

from bench import data_profile
from bench.data_profile import PipelineProfile, StageTiming
from entrypoint import Failure, Heartbeat
from train.config import load
from train.data import decoded_cache, registry
from train.data.gpu_decoding import GpuDecoder
from train.data.preprocessing import DEFAULT_PREPROCESSING
from train.data.splits import SampleIndices
from train.data.workers import SkipUnreadable
from train.distributed.shared_memory import SINGLE_RANK

TINY = ("data.samples=40", "data.image_size=8", "data.classes=2", "model.args.width=4")


def stage(images_per_s: float) -> StageTiming:
    """Ten images at a time."""
    return StageTiming(batch=10, seconds=[10 / images_per_s])


def made_up_profile(
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
    "too few workers": (made_up_profile(), "read"),
    "enough workers": (made_up_profile(workers=11), "step"),
    "all in memory": (made_up_profile(workers=None), "step"),
    "no workers": (made_up_profile(workers=0), "read"),
    "no workers, and a slow step": (made_up_profile(workers=0, step=10), "step"),
    "heavy augmentation": (made_up_profile(workers=None, augment=500), "augment"),
    "a slow bus": (made_up_profile(workers=None, copy=300), "copy"),
    "a slow bus, and slower reading": (made_up_profile(copy=600), "read"),
    "more workers than processors": (made_up_profile(cores=2, workers=40), "read"),
}


@pytest.mark.parametrize(("pipeline", "limit"), LIMITS.values(), ids=LIMITS.keys())
def test_the_stage_that_all_wait_for_is_named(pipeline: PipelineProfile, limit: str) -> None:
    assert pipeline.limit == limit


def test_workers_read_beside_the_step_and_a_rank_without_them_does_one_after_the_other() -> None:
    assert made_up_profile(augment=1e12).images_per_s == pytest.approx(400)
    assert made_up_profile(augment=1e12, workers=0).images_per_s == pytest.approx(1 / (1 / 100 + 1 / 1000))
    assert made_up_profile(augment=1e12, workers=None).images_per_s == pytest.approx(1000)


def test_workers_read_no_faster_than_there_are_processors() -> None:
    assert made_up_profile(read=1000, step=5000, cores=2, workers=8).images_per_s == pytest.approx(2000)


ADVICE: dict[str, tuple[PipelineProfile, list[str]]] = {
    "memory first": (
        made_up_profile(fits=True),
        ["data.loader=memory: 50,000 images, 154 MB", "data.workers=10: they read 1,000"],
    ),
    "a cache": (made_up_profile(cacheable=True), ["data.cache=FOLDER", "data.workers=10"]),
    "processors": (made_up_profile(cores=4, workers=3), ["more processors for a rank: 11 instead of 4"]),
    "the GPU's decoder": (made_up_profile(cores=4, workers=3, decodable=True), ["data.decode=gpu", "more processors"]),
    "fewer workers": (made_up_profile(cores=64, workers=40), ["4.0 times as fast", "data.workers=10 is enough"]),
    "nothing": (made_up_profile(workers=None), ["nothing about how data is read: all of it"]),
    "a shorter step": (
        made_up_profile(workers=None, faster_settings=["train.compile=default"]),
        ["nothing", "train.compile=default"],
    ),
    "a bus": (made_up_profile(workers=None, copy=300), ["nothing", "a smaller data.image_size"]),
    "augmentation": (made_up_profile(workers=None, augment=500), ["nothing", "takes 67% of the device's time"]),
}


@pytest.mark.parametrize(("pipeline", "lines"), ADVICE.values(), ids=ADVICE.keys())
def test_what_to_change_is_said_with_numbers(pipeline: PipelineProfile, lines: list[str]) -> None:
    advice = list(pipeline.advice())
    assert len(advice) == len(lines)
    assert all(words in line for words, line in zip(lines, advice, strict=True)), advice


def test_the_table_has_a_line_for_each_stage_that_was_measured() -> None:
    lines = made_up_profile(copy=2000).as_text().splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["read", "augment", "copy", "step"]
    assert lines[6].startswith("limit: read; a rank trains about 400 images/s")
    assert "copy" not in made_up_profile().as_text()


def test_times_that_are_too_unlike_are_said_to_be() -> None:
    slow = replace(made_up_profile(), read=StageTiming(batch=1, seconds=[1.0, 9.0]))
    assert "note: read was unsteady: 1,000.00 to 9,000.00 ms a batch" in slow.as_text()
    assert "note" not in made_up_profile().as_text()


def test_json_has_the_same_with_the_spread() -> None:
    output = json.loads(made_up_profile().as_json())
    assert (output["limit"], set(output["stages"])) == ("read", {"read", "augment", "step"})
    assert output["stages"]["step"]["images_per_s"] == pytest.approx(1000)


def test_a_rate_is_the_median_s() -> None:
    assert StageTiming(batch=10, seconds=[1.0, 9.0, 2.0]).images_per_s == 5


@pytest.fixture(autouse=True)
def _three_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_profile, "SECONDS_PER_STAGE", 0.0)


def profile(*settings: str, micro: int = 8) -> PipelineProfile:
    return data_profile.measure_stages(
        load.load_config(None, [*TINY, *settings]), config_file=None, device="cpu", ranks=1, micro=micro
    )


def test_all_stages_of_the_cpu_are_timed_with_the_micro_batch() -> None:
    timed = profile()
    assert (timed.read.batch, timed.augment.batch, timed.step.batch, timed.copy) == (8, 8, 8, None)
    assert all(len(stage.seconds) == 3 for stage in (timed.read, timed.augment, timed.step))
    assert (timed.workers, timed.images, timed.bytes_, timed.fits) == (None, 40, 40 * 8 * 8 * 3, True)


def test_workers_are_those_that_a_training_would_start() -> None:
    assert profile("data.loader=workers", "data.workers=3").workers == 3


def test_a_micro_batch_may_be_larger_than_the_data() -> None:
    timed = profile(micro=100)
    assert (timed.read.batch, timed.step.batch) == (32, 100)


def test_what_a_gpu_does_with_files_is_timed_as_one_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A CPU does it here."""
    decoder = GpuDecoder(torch.device("cpu"), (8, 8), DEFAULT_PREPROCESSING, print)
    monkeypatch.setattr(data_profile, "decoder_for", lambda *facts: decoder)
    root = write_classes(tmp_path / "d", ant=5, bee=5)
    settings = ("data.name=folder", f"data.root={root}", "data.augment=[random_resized_crop, vertical_flip]")
    timed = profile(*settings, "data.decode=gpu")
    assert timed.copy is not None
    assert (timed.copy.batch, timed.gpu_decodes, timed.decodable) == (8, True, False)
    assert "to the GPU, which decodes it" in timed.as_text()


@pytest.mark.parametrize(("more", "cacheable"), [((), True), (("data.cache={}/c",), False)])
def test_a_folder_may_be_cached_once(more: tuple[str, ...], cacheable: bool, tmp_path: Path) -> None:
    root = write_classes(tmp_path / "d", ant=5, bee=5)
    timed = profile("data.name=folder", f"data.root={root}", *(word.format(tmp_path) for word in more))
    assert timed.cacheable is cacheable


def test_a_cache_is_not_filled_to_be_timed_and_read_from_where_it_is_whole(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "d", ant=5, bee=5)
    settings = ("data.name=folder", f"data.root={root}", f"data.cache={tmp_path / 'c'}")
    timed = profile(*settings)
    assert "data.cache does not hold them yet" in timed.notes[0]
    assert not (tmp_path / "c").exists()
    config = load.load_config(None, [*TINY, *settings])
    decoded_cache.use_cache(registry.open_splits(config.data), config.data, SINGLE_RANK, Heartbeat())
    assert profile(*settings).notes == ()


def test_every_batch_that_is_read_has_the_size_that_it_is_counted_with(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = SkipUnreadable.read

    def seen(self: SkipUnreadable, samples: SampleIndices) -> Any:
        sizes.append(len(samples))
        return read(self, samples)

    monkeypatch.setattr(SkipUnreadable, "read", seen)
    profile(micro=20)  # of 32 images
    assert set(sizes) == {20}


def test_torch_is_set_as_for_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[object] = []
    monkeypatch.setattr(data_profile, "allow_tf32", settings.append)
    monkeypatch.setattr(
        data_profile, "set_up_cudnn", lambda device, *, repeatable: settings.append((device, repeatable))
    )
    profile("train.tf32=true", "train.reproducible=none")
    assert settings == [True, (torch.device("cpu"), False)]


@pytest.mark.parametrize(("free", "stays"), [(1e9, True), (1e3, False)])
def test_images_that_fit_on_the_gpu_are_not_copied(monkeypatch: pytest.MonkeyPatch, free: float, stays: bool) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
    sets = registry.open_splits(load.load_config(None, TINY).data)
    assert data_profile._fits_on_gpu(sets, sets.training.read(np.arange(1)), torch.device("cuda", 0)) is stays
    assert data_profile._time_copy(torch.ones(1), torch.device("cpu"), float, stays=stays)[1] is None


def test_what_may_shorten_a_step_and_is_not_searched_for_is_named() -> None:
    asked, gpu = (
        load.load_config(None, [*TINY, "train.precision=bf16", "train.compile=default"]),
        torch.device("cuda", 0),
    )
    assert list(data_profile._batch_size_notes(asked, gpu, 64)) == [
        "a micro batch of 64 was timed: a training searches for the largest that fits into the GPU"
    ]
    assert list(data_profile._faster_settings(asked, torch.device("cpu"), 64)) == ["a larger train.micro_batch_size"]


@pytest.mark.parametrize("setting", ["train.parallel=dp", "train.reproducible=bitwise"])
def test_what_a_training_would_refuse_is_not_advised(setting: str) -> None:
    asked = load.load_config(None, [*TINY, setting, "train.global_batch_size=64", "train.micro_batch_size=64"])
    assert list(data_profile._faster_settings(asked, torch.device("cpu"), 64)) == []
    assert list(data_profile._faster_settings(asked, torch.device("cpu"), 32)) == ["a larger train.micro_batch_size"]


def test_images_that_cannot_be_read_are_a_failure(tmp_path: Path) -> None:
    for path in write_classes(tmp_path, ant=2, bee=2).rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(Failure, match="cannot be read"):
        profile("data.name=folder", f"data.root={tmp_path}", "data.max_bad_images=9")


def test_a_step_that_does_not_fit_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("2 GiB wanted")

    real = data_profile.build_components
    optimizer: Any = SimpleNamespace(step=full)
    monkeypatch.setattr(
        data_profile, "build_components", lambda *args, **more: replace(real(*args, **more), optimizer=optimizer)
    )
    with pytest.raises(Failure, match="does not fit") as caught:
        profile()
    assert (caught.value.code, caught.value.fix) == (71, "set train.micro_batch_size below 8")


def test_a_stage_is_timed_until_its_seconds_are_over_after_one_time_that_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_profile, "SECONDS_PER_STAGE", 5.0)
    ticks, done = itertools.count(), []
    stage_timed = data_profile.time_stage(lambda: done.append(1), 4, lambda: float(next(ticks)))
    assert (len(done), list(stage_timed.seconds)) == (6, [1.0] * 5)
    assert replace(stage_timed, batch=8).images_per_s == 8
