"""Rare classes: configs/imbalanced.yaml, with its class weights and without them."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import built

IMBALANCED = Path(__file__).parents[2] / "configs" / "imbalanced.yaml"


def macro_f1(folder: Path, seed: int, weights: str) -> float:
    """On the validation images, at the end of the whole run."""
    settings = (f"run.seed={seed}", f"optim.class_weights={weights}", "log.tensorboard=false")
    with built(folder, *settings, config=IMBALANCED) as trainer:
        trainer.fit()
        assert trainer.state.result is not None
        value = trainer.state.result.value("macro_f1")
        assert value is not None
        return value


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weights_raise_macro_f1_where_one_sample_in_a_hundred_is_rare(seed: int, tmp_path: Path) -> None:
    balanced, none = (macro_f1(tmp_path / kind, seed, kind) for kind in ("balanced", "none"))
    assert balanced >= none + 0.1
