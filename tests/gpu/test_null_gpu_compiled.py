"""Compiled code and repeatable kernels, on null GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import null_gpu
import pytest
from null_gpu_trainings import SUPPORT, Start, replaced, steps

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(null_gpu.missing_runtime() is not None, reason=str(null_gpu.missing_runtime())),
    pytest.mark.timeout(1000),
]


def test_with_cuda_graphs_few_launches_are_left_for_input_optimizer_and_loss(start: Start, tmp_path: Path) -> None:
    step = steps(start, tmp_path, "train.compile=reduce-overhead")[-1]
    # Counted in November 2026; the input took 28 of 41 before it was compiled.
    assert (step["graph_launches"], step["launches"] <= 16) == (2, True), step


# The code that torch's compiler and ptxas make, for one GPU of each architecture: T4, A100, H100, B200, RTX 50.
@pytest.mark.parametrize("capability", ["75", "80", "90", "100", "120"])
def test_code_is_made_for_each_architecture(start: Start, capability: str) -> None:
    done = start(*replaced({"train.epochs": "1"}), "train.compile=default", faults={"CAPABILITY": capability})
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"graphs: \d+", done.stdout + done.stderr)


# One or two of each family.
MODELS = (
    *("small_cnn", "wide_resnet", "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s"),
    *("googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf"),
    *("resnet18", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "swin_v2_t", "vgg11", "vit_b_32"),
)
NOT_REPEATABLE = {"alexnet", "vgg11"}


def test_all_families_of_models_but_two_have_repeatable_kernels(start: Start) -> None:
    done = start(str(SUPPORT / "null_gpu_models.py"), *MODELS)
    assert done.returncode == 0, done.stderr
    refused = {name for name, text in json.loads(done.stdout.splitlines()[-1]).items() if text}
    assert refused == NOT_REPEATABLE
