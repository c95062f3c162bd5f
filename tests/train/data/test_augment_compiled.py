"""What happens to a batch, compiled into one function."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from train.data import augment
from train.data.shape import Shape

SAMPLES = np.arange(16)


@pytest.mark.slow
@pytest.mark.parametrize("augmentation", ["standard", ["translate", "mirror", "cutout"]])
def test_the_compiled_function_makes_the_same_pixels(
    augmentation: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # which torch's compiler sets
    shape = Shape(channels=3, size=(16, 16))
    moves = augment.draw_parameters(augmentation, SAMPLES, shape=shape, seed=1, epoch=0)
    pixels = torch.randint(0, 256, (16, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    arguments = (pixels, torch.from_numpy(SAMPLES), torch.from_numpy(moves.packed()))
    with torch._inductor.config.patch(compile_threads=1):  # a pool of threads would stay
        compiled = torch.compile(augment.apply, dynamic=False)(*arguments, gray=moves.gray)
    eager = augment.apply(*arguments, gray=moves.gray)
    assert compiled.stride() == eager.stride()
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6)
