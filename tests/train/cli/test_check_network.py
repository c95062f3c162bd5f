"""`train check` builds the network as a start does: it refuses the same, in the same words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jobs import TINY, built, refused
from processes import python

from entrypoint import Failure, LaunchOptions, make_plan
from train.cli import check
from train.config import load
from train.config.load import keep_last_overrides
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import registry

OWN = """
import torch
from torch import nn

def one_layer(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes))

def one_score_too_many(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes + 1))

def of_another_size(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(999, classes))

def ends_in_a_softmax(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes), nn.Softmax(dim=1))

def not_finite(classes):
    net = one_layer(classes)
    nn.init.constant_(net[1].bias, float("nan"))
    return net

class Slow(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("no step today")
"""


def described(*settings: str) -> str:
    config = load.load_config(None, keep_last_overrides([*TINY, *settings]))
    return check.describe_plan(config, None, make_plan({}, LaunchOptions(device="cpu")), None)


@pytest.fixture(scope="module")
def weights_of_a_resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights for seven classes and small images."""
    file = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    net = registry.build_model(ModelConfig(name="resnet18"), classes=7, shape=Shape(channels=3, size=(8, 8)), seed=0)
    torch.save(net.state_dict(), file)
    return file


@pytest.fixture(autouse=True)
def _a_folder_with_networks_and_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights_of_a_resnet: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "network_to_check.py").write_text(OWN)
    (tmp_path / "resnet18.pth").symlink_to(weights_of_a_resnet)
    (tmp_path / "cut.pth").write_bytes(weights_of_a_resnet.read_bytes()[:1000])
    torch.save({"other": torch.zeros(2)}, tmp_path / "other.pth")


RESNET = ("model.name=resnet18", "model.args={}")
OTHER = "model.args={}"
REFUSED: dict[str, tuple[str, ...]] = {
    "an argument that torchvision does not know": ("model.name=resnet18", "model.args={depht: 3}"),
    "a value that torchvision does not take": ("model.name=resnet18", "model.args={groups: 3}"),
    "an argument that timm does not know": ("model.name=timm/test_resnet", "model.args={depht: 3}"),
    "a value that our network does not take": ("model.args.width=-1",),
    "images that are too small": ("model.name=vgg11", OTHER),
    "images of a size that timm's model does not take": ("model.name=timm/test_vit", OTHER, "data.image_size=33"),
    "weights of another network": ("model.args={}", "model.weights=resnet18.pth"),
    "weights that hold other tensors": (*RESNET, "model.weights=other.pth"),
    "weights that are cut off": (*RESNET, "model.weights=cut.pth"),
    "weights with another stem": (*RESNET, "model.args.small_stem=false", "model.weights=resnet18.pth"),
    "an argument's value that torch's optimizer does not take": ("optim.name=adamw", "optim.args.betas=[2, 3]"),
    "an own optimizer that fails": ("optim.name=network_to_check:Slow",),
    "an own network that is not there": ("model.name=network_to_check:no", OTHER),
    "an own network with a wrong output": ("model.name=network_to_check:one_score_too_many", OTHER),
    "an own network of another size": ("model.name=network_to_check:of_another_size", OTHER),
    "an own network that is not finite": ("model.name=network_to_check:not_finite", OTHER),
    "an own network that would be frozen": ("model.name=network_to_check:one_layer", OTHER, "model.freeze=backbone"),
    "an own network without blocks": (
        "model.name=network_to_check:one_layer", OTHER, "train.activation_checkpointing=true"
    ),
}  # fmt: skip


@pytest.mark.parametrize("settings", REFUSED.values(), ids=REFUSED)
def test_check_refuses_what_a_start_refuses(settings: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        described(*settings)
    start = refused(tmp_path / "run", *settings)
    assert (str(caught.value), caught.value.code) == (str(start), start.code)


def test_check_says_what_is_loaded_from_the_weights(tmp_path: Path) -> None:
    settings = (*RESNET, "model.weights=resnet18.pth")
    shown = described(*settings)
    with built(tmp_path / "run", *settings) as trainer:
        loaded, new_head = (note for note in trainer.notes if "tensors are from" in note or "newly" in note)
    assert f"\nweights        {loaded}\n" in shown
    assert f"\nnote: {new_head}" in shown


def test_weights_that_a_resumed_run_does_not_read_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "runs/quickstart/checkpoints/step-00000004").mkdir(parents=True)
    settings = (*RESNET, "model.weights=other.pth")
    assert "\nweights " not in described(*settings)
    with pytest.raises(Failure, match="do not fit"):
        described(*settings, "checkpoint.resume=never")


def test_check_says_how_many_parameters_are_trained() -> None:
    assert "resnet18: 11,169,858 parameters are trained\n" in described(*RESNET)
    assert "resnet18: 1,026 parameters are trained\n" in described(*RESNET, "model.freeze=backbone")


def test_a_softmax_at_the_end_is_noted() -> None:
    assert "\nnote: the network of network_to_check:ends_in_a_softmax ends in a softmax" in described(
        "model.name=network_to_check:ends_in_a_softmax", OTHER
    )


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "vit_b_32", "timm/test_vit", "timm/test_convnext"])
@pytest.mark.parametrize("size", [8, 32, 64])
def test_the_meta_device_knows_which_images_a_network_takes(name: str, size: int) -> None:
    def takes(device: str) -> bool:
        try:
            with torch.device(device):
                shape = Shape(channels=3, size=(size, size))
                registry.build_model(ModelConfig(name=name), classes=2, shape=shape, seed=0)
        except Failure:
            return False
        return True

    assert takes("meta") == takes("cpu")


def test_the_quickstart_is_checked_without_torch() -> None:
    program = "import sys; from train import __main__ as front; front.run_command(['check', '--device', 'cpu'], {})"
    done = python("-c", f"{program}; print([name for name in ('torch', 'timm', 'numpy') if name in sys.modules])")
    assert done.stdout.endswith("\n[]\n"), done
