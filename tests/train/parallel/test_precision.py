"""A precision that converts the network: what a new entry of the table could ask for, such as weights in fp64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import built

from train.config.precisions import PRECISIONS


def to_double(network: Any) -> Any:
    network.register_forward_pre_hook(lambda _, images: tuple(each.double() for each in images))
    return network.double()


@pytest.mark.parametrize("mode", ["fast", "bitwise"])
def test_a_precision_may_train_other_weights_than_fp32(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRECISIONS, "fp32", replace(PRECISIONS["fp32"], convert=to_double))  # type: ignore[arg-type]
    settings = (f"train.reproducible={mode}", "train.precision=fp32", "train.ema_decay=0.9", "train.clip_grad_norm=1.0")
    with built(tmp_path, *settings) as trainer:
        trainer.fit()
        weights = [parameter.dtype for parameter in trainer.state.network.parameters()]
        moments = [state["momentum_buffer"].dtype for state in trainer.parallel.optimizer.state.values()]
    assert {*weights, *moments} == {torch.float64}
    assert trainer.state.result is not None
