"""All images in memory: on the device or staged, read by one rank or by several of a machine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hosts import together
from numbered import BAD, Numbers, collate

from entrypoint import ExitCode, Failure
from train.data import in_memory
from train.data.in_memory import DeviceDataset, HostDataset
from train.data.workers import Split, UnreadableLog
from train.distributed.shared_memory import SINGLE_RANK, HostRanks

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _two_images_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "IMAGES_PER_CHUNK", 2)


def filled(
    host: HostRanks = SINGLE_RANK, *, bad: tuple[int, ...] = BAD, most: int = 3, replaced: bool = True
) -> DeviceDataset | HostDataset:
    side = Split(
        name="side",
        source=Numbers(bad, ExitCode.DATA),
        collate=collate,
        ledger=UnreadableLog(most, print),
        most=most,
        replace=replaced,
    )
    return in_memory.load_in_memory(side, (1, 1, 1), CPU, 2, host=host)


def seen(made: DeviceDataset | HostDataset) -> tuple[list[int], list[int], list[bool] | None]:
    return (
        made.samples["image"].flatten().tolist(),
        made.samples["label"].tolist(),
        None if made.readable is None else made.readable.tolist(),
    )


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("nodes", [[0, 0], [0, 1, 0]])
def test_ranks_that_share_the_work_have_what_one_alone_has(nodes: list[int], replaced: bool) -> None:
    assert [seen(made) for made in together(lambda host: filled(host, replaced=replaced), nodes)] == [
        seen(filled(replaced=replaced))
    ] * len(nodes)


def test_ranks_of_one_machine_hold_the_pixels_once() -> None:
    first, second = together(filled, [0, 0])
    first.samples["image"][0] = 77
    assert int(second.samples["image"][0]) == 77


def test_the_first_broken_image_ends_all_ranks_whoever_has_read_it() -> None:
    def run(host: HostRanks) -> str:
        with pytest.raises(Failure) as caught:
            filled(host, most=0)
        return caught.value.what

    assert together(run, [0, 0, 1]) == ["image 2"] * 3


def test_too_many_broken_images_are_counted_over_the_ranks_of_a_machine() -> None:
    def run(host: HostRanks) -> int:
        with pytest.raises(Failure, match="more than 2") as caught:
            filled(host, most=2)
        return caught.value.code

    assert together(run, [0, 0]) == [ExitCode.DATA] * 2


def staged(made: DeviceDataset | HostDataset) -> HostDataset:
    """The same images as if the device had no room for them."""
    return HostDataset(made.samples, made.readable, CPU)


@pytest.mark.parametrize("replaced", [True, False])
def test_staged_batches_are_those_of_memory_on_the_device(replaced: bool) -> None:
    dataset, requests = filled(replaced=replaced), [np.array([1, 2, 3]), np.array([2]), np.array([9, 8])]
    expected, read = (
        [
            (batch["image"][batch.get("row", slice(None))].flatten().tolist(), batch["label"].tolist(), batch["sample"])
            for _, batch in made.read(enumerate(requests))
        ]
        for made in (dataset, staged(dataset))
    )
    assert [batch[:2] for batch in expected] == [batch[:2] for batch in read]
    assert all(torch.equal(batch[2], same[2]) for batch, same in zip(expected, read, strict=True))


def test_one_batch_is_on_its_way_before_it_is_asked_for() -> None:
    asked = []
    requests = (asked.append(number) or np.array([number]) for number in range(4))  # type: ignore[func-returns-value]
    stream = staged(filled(bad=())).read(enumerate(requests))
    for number in range(4):
        next(stream)
        assert asked[-1] == min(number + 1, 3)


def test_images_that_would_fill_the_gpu_stay_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, pixels = torch.device("cuda", 0), torch.zeros(40, 1, 1, 1, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(in_memory, "DeviceDataset", lambda *args: "on the GPU")
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)
    placed = [in_memory._place_dataset({"image": pixels[:count]}, None, gpu) for count in (25, 26)]
    assert (placed[0], type(placed[1])) == ("on the GPU", HostDataset)


def test_a_side_without_images_has_none_on_any_rank() -> None:
    source = Numbers((), ExitCode.DATA)
    source.labels = torch.arange(0)
    empty = Split(name="side", source=source, collate=collate, ledger=UnreadableLog(0, print), most=0, replace=True)
    made = together(lambda host: in_memory.load_in_memory(empty, (1, 1, 1), CPU, 1, host=host), [0, 0])
    assert [len(dataset.samples["image"]) for dataset in made] == [0, 0]
