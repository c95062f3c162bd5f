"""Weights go into a network whole, but for its head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from entrypoint import Failure
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import registry, weights


def build(
    name: str = "small_cnn", *, classes: int = 4, seed: int = 0, size: int = 16, channels: int = 3, **args: Any
) -> nn.Module:
    shape = Shape(channels=channels, size=(size, size))
    return registry.build_model(ModelConfig(name=name, args=args), classes=classes, shape=shape, seed=seed)


def kept(net: nn.Module, folder: Path) -> str:
    """The path of a file with the network's weights."""
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, folder / "w.safetensors")
    return str(folder / "w.safetensors")


@pytest.mark.parametrize("name", ["small_cnn", "resnet18"])
def test_a_network_gets_all_its_weights(tmp_path: Path, name: str) -> None:
    given, net = build(name, seed=1), build(name, seed=2)
    notes = weights.load_weights(net, kept(given, tmp_path))
    assert all(torch.equal(tensor, given.state_dict()[key]) for key, tensor in net.state_dict().items())
    number = len(net.state_dict())
    assert notes == (f"{number} of {number} tensors are from {tmp_path}/w.safetensors",)


@pytest.mark.parametrize("name", ["small_cnn", "wide_resnet", "resnet18", "squeezenet1_1", "vit_b_32", "densenet121"])
def test_a_head_with_other_classes_starts_anew_and_is_said(tmp_path: Path, name: str) -> None:
    given, net = build(name, classes=7, seed=1, size=32), build(name, classes=4, seed=2, size=32)
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    notes = weights.load_weights(net, kept(given, tmp_path))
    head = notes[1].split(":")[0].split(", ")
    assert notes[1] == f"{', '.join(head)}: 4 classes here, 7 there: newly initialized"
    for key, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[key] if key in head else given.state_dict()[key]), key


def test_a_head_with_other_features_starts_anew_as_a_whole(tmp_path: Path) -> None:
    net = build(size=32)
    notes = weights.load_weights(net, kept(build(size=64), tmp_path))
    assert len(notes) == 1
    notes = weights.load_weights(net, kept(build(size=48), tmp_path))
    assert "newly initialized" in notes[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_weights_of_other_precision_are_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    net = build()
    path = kept(build(seed=1).to(dtype), tmp_path)
    weights.load_weights(net, path)
    assert {tensor.dtype for tensor in net.state_dict().values()} == {torch.float32}


def test_the_layout_in_memory_stays(tmp_path: Path) -> None:
    net = build()
    weights.load_weights(net, kept(build(seed=1), tmp_path))
    assert next(net.parameters()).is_contiguous(memory_format=torch.channels_last)


def test_auxiliary_heads_are_left_out(tmp_path: Path) -> None:
    net = build("googlenet", size=32)
    torch.save({**net.state_dict(), "aux1.fc2.weight": torch.zeros(3, 3)}, tmp_path / "w.pt")
    assert weights.load_weights(net, str(tmp_path / "w.pt"))


def test_published_densenets_names_are_understood(tmp_path: Path) -> None:
    net = build("densenet121", size=32)
    old = {
        name.replace(".norm1.", ".norm.1.").replace(".conv2.", ".conv.2."): t for name, t in net.state_dict().items()
    }
    save_file({name: tensor.contiguous() for name, tensor in old.items()}, tmp_path / "w.safetensors")
    assert old.keys() != net.state_dict().keys()
    assert weights.load_weights(net, str(tmp_path / "w.safetensors"))


def test_counters_that_old_files_lack_are_not_missed(tmp_path: Path) -> None:
    net = build("resnet18")
    named = {name: t.contiguous() for name, t in net.state_dict().items() if "num_batches" not in name}
    save_file(named, tmp_path / "w.safetensors")
    assert weights.load_weights(net, str(tmp_path / "w.safetensors"))


def edited(**changes: Any) -> Callable[[dict[str, Tensor]], None]:
    """Replace tensors, by a name with _ for the dots; None takes one away."""

    def edit(named: dict[str, Tensor]) -> None:
        for name, change in changes.items():
            key = name.replace("__", ".")
            if change is None:
                del named[key]
            else:
                named[key] = change(named[key]) if key in named else change(torch.zeros(1))

    return edit


BAD: dict[str, tuple[dict[str, Any], Callable[[dict[str, Tensor]], None], str]] = {
    "one missing": ({}, edited(conv1__weight=None), "1 missing: conv1.weight"),
    "its head missing": ({}, edited(fc__weight=None, fc__bias=None), "2 missing: fc.weight, fc.bias"),
    "one unknown": ({}, edited(extra=torch.clone), "1 unknown: extra"),
    "another network": ({}, lambda named: named.clear(), "102 missing: conv1.weight, bn1.weight, bn1.bias, "),
    "another shape": ({}, edited(bn1__bias=lambda t: t[:9]), "1 of another shape: bn1.bias ([64] here, [9] there)"),
    "whole numbers": ({}, edited(bn1__bias=lambda t: t.int()), "1 of another kind: bn1.bias (torch.int32)"),
    "complex numbers": ({}, edited(bn1__bias=lambda t: t.to(torch.complex64)), "bn1.bias (torch.complex64)"),
    "a number for a counter": ({}, edited(bn1__num_batches_tracked=lambda t: t.float()), "1 of another kind"),
    "NaN": ({}, edited(bn1__bias=lambda t: t * float("nan")), "NaN or infinite numbers"),
    "infinite": ({}, edited(bn1__bias=lambda t: t + float("inf")), "1 tensors: bn1.bias"),
    "too large": ({}, edited(bn1__bias=lambda t: t.double() + 1e300), "NaN or infinite numbers"),
    "other channels": ({"channels": 1}, edited(), "samples with 1 channels"),
    "another stem": ({"small_stem": False}, edited(), "model.args.small_stem=false"),
}


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    return build("resnet18")


@pytest.mark.parametrize("kind", BAD)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path, kind: str, resnet: nn.Module) -> None:
    args, edit, said = BAD[kind]
    named = {name: t.contiguous().clone() for name, t in build("resnet18", seed=1, **args).state_dict().items()}
    edit(named)
    torch.save(named or {"other": torch.zeros(1)}, tmp_path / "w.pt")
    before = {name: tensor.clone() for name, tensor in resnet.state_dict().items()}
    with pytest.raises(Failure) as caught:
        weights.load_weights(resnet, str(tmp_path / "w.pt"))
    assert caught.value.code == 65
    assert said in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in resnet.state_dict().items())


def test_a_missing_file_is_missing_input(tmp_path: Path, resnet: nn.Module) -> None:
    with pytest.raises(Failure) as caught:
        weights.load_weights(resnet, str(tmp_path / "no.pt"))
    assert caught.value.code == 66


def test_another_width_is_no_question_of_channels(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="15 of another shape") as caught:
        weights.load_weights(build(width=8), kept(build(), tmp_path))
    assert caught.value.fix.startswith("set model.name and model.args")


def test_a_transformers_positions_belong_to_its_size(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        weights.load_weights(build("vit_b_32", size=64), kept(build("vit_b_32", size=32), tmp_path))
    assert "data.image_size" in caught.value.fix


PREFIXES = ["module.", "_orig_mod.", "model.", "backbone.", "net.module.", "module._orig_mod.", "encoder."]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_prefix_of_all_names_is_left_out_and_said(tmp_path: Path, prefix: str, suffix: str) -> None:
    given, net = build("resnet18", seed=1, small_stem=False), build("resnet18", seed=2, small_stem=False)
    tensors = {f"{prefix}{name}": tensor.contiguous() for name, tensor in given.state_dict().items()}
    path = tmp_path / f"w{suffix}"
    save_file(tensors, path) if suffix == ".safetensors" else torch.save({"state_dict": tensors}, path)
    assert weights.fit_stem(ModelConfig(name="resnet18", weights=str(path))).args == {"small_stem": False}
    notes = weights.load_weights(net, str(path), "resnet18")
    assert all(torch.equal(tensor, given.state_dict()[key]) for key, tensor in net.state_dict().items())
    assert f"all names in the file begin with {prefix}, which is left out" in notes


def test_an_average_of_torchs_is_read_without_its_counter(tmp_path: Path) -> None:
    given, net = build(seed=1), build(seed=2)
    averaged = torch.optim.swa_utils.AveragedModel(given)
    torch.save(averaged.state_dict(), tmp_path / "w.pth")
    weights.load_weights(net, str(tmp_path / "w.pth"))
    assert all(torch.equal(tensor, given.state_dict()[key]) for key, tensor in net.state_dict().items())


class Wrapped(nn.Module):
    """A network whose own names share a prefix."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.model = build(seed=seed)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_prefix_of_the_networks_own_names_stays(tmp_path: Path, prefix: str) -> None:
    given, net = Wrapped(1), Wrapped(2)
    torch.save({f"{prefix}{name}": tensor for name, tensor in given.state_dict().items()}, tmp_path / "w.pth")
    notes = weights.load_weights(net, str(tmp_path / "w.pth"))
    assert all(torch.equal(tensor, given.state_dict()[key]) for key, tensor in net.state_dict().items())
    assert len(notes) == (2 if prefix else 1)


def test_weights_of_another_network_under_a_prefix_do_not_fit(tmp_path: Path) -> None:
    tensors = {f"module.other.{name}": tensor for name, tensor in build(seed=1).state_dict().items()}
    torch.save(tensors | {"module.more": torch.ones(1)}, tmp_path / "w.pth")
    with pytest.raises(Failure, match="do not fit this model"):
        weights.load_weights(build(), str(tmp_path / "w.pth"))
