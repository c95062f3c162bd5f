"""A real GPU whose memory is nearly full: another process may not run beside these tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.timeout(400)
if not torch.cuda.is_available():
    pytest.skip("gpu: none on this machine", allow_module_level=True)

FREE = 3 << 30  # bytes
LIMIT_S = 300.0
LARGE = ("model.name=wide_resnet", "model.args={depth: 2, width: 10}", "data.samples=10000", "train.max_steps=2")
LARGE += ("train.global_batch_size=4096", "log.tensorboard=false", "run.name=run")


@pytest.fixture(autouse=True)
def _nearly_full() -> Iterator[None]:
    """Take all memory but FREE."""
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - FREE, dtype=torch.uint8, device="cuda")
    yield
    del held
    torch.cuda.empty_cache()


def train(folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "train", "--device", "cuda", *LARGE, *settings]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)


def test_the_micro_batch_becomes_as_small_as_the_memory_wants(tmp_path: Path) -> None:
    done = train(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    micro = json.loads((tmp_path / "runs/run/run.json").read_text())["training"]["fit"]["micro"]
    assert 16 <= micro <= 2048


def test_a_micro_batch_that_does_not_fit_ends_with_71(tmp_path: Path) -> None:
    done = train(tmp_path, "train.micro_batch_size=4096")
    assert (done.returncode, "train.micro_batch_size" in done.stderr) == (71, True), done.stderr
