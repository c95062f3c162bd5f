"""The table of images against the lock files and the installed torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from entrypoint import images
from entrypoint.images import IMAGES

ROOT = Path(__file__).parents[2]
LOCK_FILES = {"13": "requirements.lock", "12": "requirements-cuda12.lock"}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_holds_the_torch_of_its_lock_file(name: str) -> None:
    locked = re.findall(r"^torch==(\S+)", (ROOT / LOCK_FILES[name]).read_text(), re.M)
    assert locked == [IMAGES[name].torch]


@pytest.mark.needs_torch
def test_the_installed_torch_has_code_for_the_listed_gpus_and_no_others() -> None:
    import torch

    if torch.version.cuda is None:
        pytest.skip("machine: torch is a build for the CPU")
    installed = next(image for image in IMAGES.values() if image.torch == torch.__version__.partition("+")[0])
    # torch.cuda.get_arch_list() is empty without a GPU.
    assert torch._C._cuda_getArchFlags().split() == [f"sm_{major}{minor}" for major, minor in installed.architectures]
    assert torch.version.cuda == "{}.{}".format(*installed.cuda)


def test_a_cpu_build_of_torch_has_no_cuda(tmp_path: Path) -> None:
    text = "__version__ = '2.15.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
    (tmp_path / "version.py").write_text(text)
    assert images.installed_torch_versions(tmp_path) == ("2.15.0+cpu", None)


@pytest.mark.needs_torch
def test_the_installed_torch_is_read_as_it_tells_itself() -> None:
    import torch

    assert images.installed_torch_versions() == (torch.__version__, torch.version.cuda)
