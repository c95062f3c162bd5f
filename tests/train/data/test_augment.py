"""Pixels become a model's input: moved, cut out, normalized, and compiled with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from train.data import augment
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing
from train.data.shape import Shape

SIZE = 16
SHAPE = Shape(channels=3, size=(SIZE, SIZE))
SAMPLES = np.arange(1000)


def image() -> torch.Tensor:
    """One image in which every pixel is different."""
    return torch.arange(SIZE * SIZE * 3, dtype=torch.int32).remainder(251).to(torch.uint8).view(1, SIZE, SIZE, 3)


def moved(down: int, right: int, mirror: int) -> torch.Tensor:
    return augment.apply(image(), torch.tensor([0]), torch.tensor([[down], [right], [mirror]]))[0]


def test_an_image_that_does_not_move_is_only_normalized() -> None:
    assert torch.equal(moved(0, 0, 0), augment.normalize(image())[0])


def test_normalized_pixels_lie_around_zero() -> None:
    ends = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 2, 1).expand(1, 1, 2, 3)
    assert augment.normalize(ends).flatten().unique().tolist() == [-2.0, 2.0]


@pytest.mark.parametrize("shape", [(20, 24, 3), (20, 24, 1), (4, 20, 24, 3)], ids=["color", "gray", "clip"])
def test_large_samples_are_normalized_one_by_one_with_the_same_bits(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, *shape), np.uint8))
    rows, mirror = torch.tensor([3, 0, 8, 3]), torch.tensor([0, 1, 0, 1])
    shifts = torch.stack([torch.zeros_like(mirror), torch.zeros_like(mirror), mirror])
    per_channel = Preprocessing(mean=(0.485, 0.456, 0.406)[: shape[-1]], std=(0.229, 0.224, 0.225)[: shape[-1]])
    for preprocessing in (DEFAULT_PREPROCESSING, per_channel):
        at_once, one_by_one = [], []
        for results, least in ((at_once, 10**9), (one_by_one, 1)):
            monkeypatch.setattr(augment, "LARGE_SAMPLE", least)
            results.append(augment.apply(pixels, rows, shifts, preprocessing=preprocessing))
            results.append(augment.normalize(pixels, preprocessing))
        for result, expected in zip(at_once, one_by_one, strict=True):
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()


def test_a_mirrored_image_is_flipped_left_to_right() -> None:
    assert torch.equal(moved(0, 0, 1), moved(0, 0, 0).flip(2))


@pytest.mark.parametrize(("down", "right"), [(2, 0), (-2, 0), (0, 1), (0, -1)])
def test_a_shift_moves_the_inside_by_whole_pixels(down: int, right: int) -> None:
    still, shifted = moved(0, 0, 0), moved(down, right, 0)
    inside = slice(3, SIZE - 3)
    expected = still.roll((-down, -right), (1, 2))
    assert torch.equal(shifted[:, inside, inside], expected[:, inside, inside])


def test_what_comes_in_from_outside_is_the_images_own_mirror() -> None:
    assert torch.equal(moved(2, 0, 0)[:, -1], moved(0, 0, 0)[:, -3])


def test_a_samples_moves_do_not_depend_on_its_batch() -> None:
    batch = augment.draw_parameters("standard", SAMPLES, shape=SHAPE, seed=0, epoch=3)
    part = augment.draw_parameters("standard", SAMPLES[[7, 400]], shape=SHAPE, seed=0, epoch=3)
    assert part.down.tolist() == batch.down[[7, 400]].tolist()
    assert part.right.tolist() == batch.right[[7, 400]].tolist()
    assert part.mirror.tolist() == batch.mirror[[7, 400]].tolist()


def test_moves_reach_an_eighth_both_ways_and_mirror_half() -> None:
    moves = augment.draw_parameters("standard", SAMPLES, shape=SHAPE, seed=0, epoch=0)
    assert set(moves.down.tolist()) == set(moves.right.tolist()) == {-2, -1, 0, 1, 2}
    assert 400 < moves.mirror.sum() < 600


def test_the_reach_of_a_shift_is_a_share_of_the_side() -> None:
    moves = augment.draw_parameters("standard", SAMPLES, shape=SHAPE, seed=0, epoch=0, shift=1 / 16)
    assert set(moves.down.tolist()) == set(moves.right.tolist()) == {-1, 0, 1}


def test_what_may_not_be_mirrored_is_only_shifted() -> None:
    as_usual = augment.draw_parameters("standard", SAMPLES, shape=SHAPE, seed=0, epoch=0)
    moves = augment.draw_parameters("standard", SAMPLES, shape=SHAPE, seed=0, epoch=0, mirror=False)
    assert not moves.mirror.any()
    assert (moves.down.tolist(), moves.right.tolist()) == (as_usual.down.tolist(), as_usual.right.tolist())


def test_the_next_epoch_moves_the_same_sample_otherwise() -> None:
    first, second = (augment.draw_parameters("standard", SAMPLES, shape=SHAPE, seed=0, epoch=epoch) for epoch in (0, 1))
    assert first.down.tolist() != second.down.tolist()


def test_without_augmentation_nothing_moves() -> None:
    moves = augment.draw_parameters("none", SAMPLES, shape=SHAPE, seed=0, epoch=0)
    assert not moves.down.any()
    assert not moves.mirror.any()


def test_translate_shifts_as_standard_does_and_fills_with_gray() -> None:
    as_usual = augment.draw_parameters("standard", SAMPLES, shape=SHAPE, seed=0, epoch=0)
    moves = augment.draw_parameters("translate", SAMPLES, shape=SHAPE, seed=0, epoch=0)
    assert (moves.down.tolist(), moves.mirror.any()) == (as_usual.down.tolist(), False)
    given = augment.apply(image(), torch.tensor([0]), torch.tensor([[2], [-1], [0]]), gray=True)[0]
    assert not given[:, -2:].any()
    assert not given[:, :, 0].any()
    assert torch.equal(given[:, :-2, 1:], moved(2, -1, 0)[:, :-2, 1:])


def test_cutout_grays_a_square_of_three_eighths_of_the_side() -> None:
    given = augment.apply(image(), torch.tensor([0]), torch.tensor([[0], [0], [0], [8], [9]]))[0]
    changed = (given != moved(0, 0, 0)).any(0).nonzero()
    assert (changed.min(0).values.tolist(), changed.max(0).values.tolist()) == ([5, 6], [10, 11])
    assert not given[:, 5:11, 6:12].any()


def test_a_square_at_the_border_lies_partly_outside() -> None:
    given = augment.apply(image(), torch.tensor([0]), torch.tensor([[0], [0], [0], [0], [15]]))[0]
    changed = (given != moved(0, 0, 0)).any(0).nonzero()
    assert (changed.min(0).values.tolist(), changed.max(0).values.tolist()) == ([0, 12], [2, 15])


def test_a_word_beside_another_does_what_it_does_alone() -> None:
    alone = augment.draw_parameters("cutout", SAMPLES, shape=SHAPE, seed=0, epoch=0)
    both = augment.draw_parameters(["standard", "cutout"], SAMPLES, shape=SHAPE, seed=0, epoch=0)
    as_usual = augment.draw_parameters("standard", SAMPLES, shape=SHAPE, seed=0, epoch=0)
    assert np.array_equal(both.packed()[3:], alone.packed()[3:])
    assert np.array_equal(both.packed()[:3], as_usual.packed())
    assert not alone.packed()[:3].any()


def test_the_square_of_a_clip_is_in_all_its_frames() -> None:
    clip = torch.stack([image()[0], image()[0]])[None]
    given = augment.apply(clip, torch.tensor([0]), torch.tensor([[0], [0], [0], [8], [8]]))[0]
    assert not given[:, :, 5:11, 5:11].any()
    assert given.bool().any(0).logical_not().sum() == 2 * 36


def test_all_frames_of_a_clip_move_alike() -> None:
    clip = torch.stack([image()[0], image()[0].flip(0)])[None]
    shifts = torch.tensor([[1], [2], [1]])
    both = augment.apply(clip, torch.tensor([0]), shifts)
    alone = [augment.apply(frame[None], torch.tensor([0]), shifts)[0] for frame in clip[0]]
    assert torch.equal(both[0], torch.stack(alone, dim=1))


def test_height_and_width_may_differ_and_there_may_be_one_channel() -> None:
    wide = torch.arange(6 * 10, dtype=torch.uint8).view(1, 6, 10, 1)
    assert augment.apply(wide, torch.tensor([0]), torch.tensor([[0], [1], [0]]))[0, 0, 0, :9].equal(
        augment.normalize(wide)[0, 0, 0, 1:]
    )


def test_numbers_that_are_no_bytes_stay_what_they_are() -> None:
    assert augment.normalize(torch.full((1, 2, 2, 3), 0.5)).unique().tolist() == [0.5]


def test_images_that_stay_are_what_moves_by_nothing_give() -> None:
    pixels = torch.randint(0, 256, (6, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rows, still = torch.tensor([4, 0, 2]), torch.zeros((3, 3), dtype=torch.int64)
    moved = augment.apply(pixels, rows, still)
    kept = augment.normalize(pixels.index_select(0, rows))
    assert kept.equal(moved)
    assert kept.stride() == moved.stride()


@pytest.mark.parametrize(
    ("kind", "still"), [("none", True), (["none"], True), ("standard", False), (["cutout"], False)]
)
def test_only_none_leaves_images_as_they_are(kind: str | list[str], still: bool) -> None:
    assert augment.is_identity(kind) is still


@pytest.mark.parametrize("size", [16, 512])
def test_of_no_image_there_is_an_empty_batch(size: int) -> None:
    assert augment.normalize(torch.empty((0, size, size, 3), dtype=torch.uint8)).shape == (0, 3, size, size)


FEW_SAMPLES = np.arange(16)


@pytest.mark.slow
@pytest.mark.parametrize("augmentation", ["standard", ["translate", "mirror", "cutout"]])
def test_the_compiled_function_makes_the_same_pixels(
    augmentation: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # which torch's compiler sets
    shape = Shape(channels=3, size=(16, 16))
    moves = augment.draw_parameters(augmentation, FEW_SAMPLES, shape=shape, seed=1, epoch=0)
    pixels = torch.randint(0, 256, (16, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    arguments = (pixels, torch.from_numpy(FEW_SAMPLES), torch.from_numpy(moves.packed()))
    with torch._inductor.config.patch(compile_threads=1):  # a pool of threads would stay
        compiled = torch.compile(augment.apply, dynamic=False)(*arguments, gray=moves.gray)
    eager = augment.apply(*arguments, gray=moves.gray)
    assert compiled.stride() == eager.stride()
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6)
