"""What is known of a checkpoint comes from itself, and from the run's folder where that is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from jobs import trained

from train.evaluation.results import EvaluationResult
from train.inference import checkpoints, evaluate, model_card
from train.inference.model_card import ModelFacts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints at each of eight steps, evaluated after steps 4 and 8; its last start's record is made up."""
    folder = tmp_path_factory.mktemp("run")
    trained(folder, "checkpoint.every_steps=1", "checkpoint.keep=9")
    (folder / "run.json").write_text('{"starts": [], "training": {"precision": "fp32"}, "versions": 5}')
    return folder


def about(run: Path, step: int) -> ModelFacts:
    found = checkpoints.choose_checkpoint(str(run / "checkpoints" / f"step-{step:08d}"))
    config, _ = checkpoints.load_config(found, None, ())
    return model_card.collect_model_facts(config, found)


def test_scores_are_those_of_the_weights_themselves(run: Path) -> None:
    assert isinstance(about(run, 8).result, EvaluationResult)
    assert about(run, 6).result is None  # what was measured at step 4 is of other weights


def test_the_tensors_are_those_that_an_evaluation_measures(run: Path) -> None:
    found, measured = (
        about(run, 8),
        evaluate.load_weights(checkpoints.choose_checkpoint(str(run / "checkpoints" / "step-00000008"))),
    )
    assert found.tensors.keys() == measured.tensors.keys()
    assert all(torch.equal(tensor, measured.tensors[name]) for name, tensor in found.tensors.items())


def test_the_runs_record_is_read_where_the_checkpoint_lies_in_its_run(run: Path, tmp_path: Path) -> None:
    assert model_card.submapping(about(run, 8).recorded, "training") == {"precision": "fp32"}
    assert model_card.submapping(about(run, 8).recorded, "versions") == {}  # not what it should be
    alone = shutil.copytree(run / "checkpoints" / "step-00000008", tmp_path / "elsewhere" / "step-00000008")
    config, _ = checkpoints.load_config(found := checkpoints.choose_checkpoint(str(alone)), None, ())
    assert model_card.collect_model_facts(config, found).recorded == {}
