"""The table of images against the lock files and the installed torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from entrypoint.images import IMAGES

ROOT = Path(__file__).parents[2]
LOCK_FILES = {"13": "requirements.lock", "12": "requirements-cuda12.lock"}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_holds_the_torch_of_its_lock_file(name: str) -> None:
    locked = re.findall(r"^torch==(\S+)", (ROOT / LOCK_FILES[name]).read_text(), re.M)
    assert locked == [IMAGES[name].torch]


def test_the_installed_torch_has_code_for_the_listed_gpus_and_no_others() -> None:
    installed = next(image for image in IMAGES.values() if image.torch == torch.__version__.partition("+")[0])
    # torch.cuda.get_arch_list() is empty without a GPU.
    assert torch._C._cuda_getArchFlags().split() == [f"sm_{major}{minor}" for major, minor in installed.architectures]
    assert torch.version.cuda == "{}.{}".format(*installed.cuda)
