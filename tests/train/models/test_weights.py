"""Weights are read from files and folders, or refused, and go into a network whole but for its head."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from entrypoint import Failure
from train.checkpoint import format
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import registry, weights

TENSORS = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}


def save_run(folder: Path, *, step: int = 3, **groups: dict[str, Tensor]) -> Path:
    """A run's folder with one checkpoint."""
    format.save_checkpoint(folder / "checkpoints", step=step, tensors={"model": TENSORS, **groups}, metadata={}, keep=9)
    return folder


def are_the_tensors(tensors: dict[str, Tensor]) -> bool:
    return tensors.keys() == TENSORS.keys() and all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_safetensors_are_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "w.safetensors")
    assert are_the_tensors(weights.read_weights(tmp_path / "w.safetensors").tensors)


@pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".ckpt"])
@pytest.mark.parametrize(
    "content",
    [
        TENSORS,
        OrderedDict(TENSORS),
        {"state_dict": TENSORS, "epoch": 3},
        {"model": TENSORS, "optimizer": {"lr": 0.1}},
        {"model_state_dict": TENSORS},
        {"network": TENSORS, "epoch": 3},
        {"state_dict_ema": TENSORS, "optimizer": {"state": {0: TENSORS}, "param_groups": [{"lr": 0.1}]}},
    ],
    ids=["plain", "ordered", "state_dict", "model", "model_state_dict", "another key", "the only key"],
)
def test_state_dicts_are_found_wherever_they_are_kept(tmp_path: Path, content: Any, ending: str) -> None:
    torch.save(content, tmp_path / f"w{ending}")
    assert are_the_tensors(weights.read_weights(tmp_path / f"w{ending}").tensors)


OTHER_TENSORS = {name: tensor + 1 for name, tensor in TENSORS.items()}


@pytest.mark.parametrize(
    ("content", "taken", "left"),
    [
        ({"state_dict_ema": OTHER_TENSORS, "state_dict": TENSORS}, "state_dict", "state_dict_ema"),
        ({"model": TENSORS, "model_ema": OTHER_TENSORS, "epoch": 3}, "model", "model_ema"),
        ({"ema": OTHER_TENSORS, "model_state_dict": TENSORS}, "model_state_dict", "ema"),
        ({"state_dict": TENSORS, "model": OTHER_TENSORS, "teacher": OTHER_TENSORS}, "state_dict", "model, teacher"),
    ],
)
def test_of_several_weights_in_a_file_it_is_said_which_are_taken(
    tmp_path: Path, content: Any, taken: str, left: str
) -> None:
    torch.save(content, tmp_path / "w.pth")
    read = weights.read_weights(tmp_path / "w.pth")
    assert are_the_tensors(read.tensors)
    (note,) = read.notes
    assert f"the weights under {taken} are taken, and not those under {left}:" in note


def test_several_weights_without_a_known_name_are_refused(tmp_path: Path) -> None:
    torch.save({"student": TENSORS, "teacher": OTHER_TENSORS}, tmp_path / "w.pth")
    with pytest.raises(Failure, match="none of a known name: student, teacher") as caught:
        weights.read_weights(tmp_path / "w.pth")
    assert caught.value.code == 65


def test_older_files_of_torch_are_read(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "w.pth", _use_new_zipfile_serialization=False)
    assert are_the_tensors(weights.read_weights(tmp_path / "w.pth").tensors)


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/step-00000003"])
def test_a_checkpoint_of_ours_is_read_by_its_folder_or_its_runs(tmp_path: Path, inside: str) -> None:
    loaded = weights.read_weights(save_run(tmp_path / "run") / inside)
    assert are_the_tensors(loaded.tensors)
    assert loaded.origin == f"{tmp_path}/run/checkpoints/step-00000003 (weights)"


def test_of_a_runs_checkpoints_the_newest_whole_one_is_read(tmp_path: Path) -> None:
    save_run(tmp_path, step=4)
    save_run(tmp_path, step=9)
    (tmp_path / "checkpoints/step-00000009/model.safetensors").write_bytes(b"no")
    assert "step-00000004" in weights.read_weights(tmp_path).origin


def test_averaged_weights_are_preferred(tmp_path: Path) -> None:
    loaded = weights.read_weights(save_run(tmp_path, ema={"fc.weight": torch.full((2, 3), 7.0)}))
    assert loaded.tensors["fc.weight"].unique().tolist() == [7]
    assert loaded.tensors["fc.bias"].tolist() == [0, 0]
    assert loaded.origin.endswith("(averaged weights)")


def test_a_link_to_a_checkpoint_is_followed(tmp_path: Path) -> None:
    (tmp_path / "best").symlink_to(save_run(tmp_path / "run"))
    assert are_the_tensors(weights.read_weights(tmp_path / "best").tensors)


class Harmful:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


def torch_saved(content: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path)


def written(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def cut(path: Path) -> None:
    torch.save(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-300])


def half_safetensors(path: Path) -> None:
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-9])


UNREADABLE: dict[str, tuple[str, Callable[[Path], Any], int, str]] = {
    "nothing there": ("w.pt", lambda path: None, 66, "there is nothing"),
    "a pipe": ("w.pt", os.mkfifo, 66, "no regular file"),
    "an empty folder": ("w.pt", Path.mkdir, 66, "holds no checkpoint"),
    "another ending": ("w.onnx", written(b"x"), 64, "ends in .onnx"),
    "no ending": ("w", written(b"x"), 64, "ends in nothing"),
    "an empty file": ("w.pt", written(b""), 65, "damaged"),
    "text": ("w.pth", written(b"hello, weights\n"), 65, "damaged"),
    "a page of an error": ("w.pth", written(b"<html>404</html>"), 65, "damaged"),
    "half a file": ("w.pt", cut, 65, "damaged"),
    "empty safetensors": ("w.safetensors", written(b""), 65, "damaged"),
    "half of safetensors": ("w.safetensors", half_safetensors, 65, "damaged"),
    "text as safetensors": ("w.safetensors", written(b"hello, weights, hello"), 65, "damaged"),
    "safetensors of another's": ("w.safetensors", torch_saved(TENSORS), 65, "damaged"),
    "a pickle that runs code": ("w.pt", torch_saved({"state_dict": Harmful()}), 77, "mkdir"),
    "a whole network": ("w.pt", torch_saved(nn.Linear(2, 2)), 77, "torch.nn.modules.linear.Linear"),
    "a list": ("w.pt", torch_saved([torch.ones(1)]), 65, "found: a list"),
    "a tensor": ("w.pt", torch_saved(torch.ones(1)), 65, "found: a Tensor"),
    "an empty dict": ("w.pt", torch_saved({}), 65, "found: nothing"),
    "numbers among tensors": ("w.pt", torch_saved({**TENSORS, "epoch": 3}), 65, "'epoch', which is no tensor"),
    "numbered tensors": ("w.pt", torch_saved({0: torch.ones(1)}), 65, "0, which is no tensor"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_holds_no_weights_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, make, code, problem = UNREADABLE[kind]
    monkeypatch.chdir(tmp_path)
    make(tmp_path / name)
    with pytest.raises(Failure) as caught:
        weights.read_weights(tmp_path / name)
    assert caught.value.code == code
    assert problem in str(caught.value)
    assert not Path("harmed").exists()


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_an_archive_of_torchscript_is_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(1, 1)), tmp_path / "w.pt")
    with pytest.raises(Failure) as caught:
        weights.read_weights(tmp_path / "w.pt")
    assert caught.value.code == 65


@pytest.mark.parametrize("inside", ["", "checkpoints/step-00000003"])
def test_a_damaged_checkpoint_is_refused_with_a_fix_that_fits(tmp_path: Path, inside: str) -> None:
    save_run(tmp_path)
    (tmp_path / "checkpoints/step-00000003/model.safetensors").write_bytes(b"no")
    with pytest.raises(Failure) as caught:
        weights.read_weights(tmp_path / inside)
    assert (caught.value.code, caught.value.fix) == (65, "name another checkpoint in model.weights")


@pytest.mark.skipif(os.geteuid() == 0, reason="machine: root may read everything")
def test_a_file_that_may_not_be_read_is_missing_input(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "w.pt")
    (tmp_path / "w.pt").chmod(0)
    with pytest.raises(Failure) as caught:
        weights.read_weights(tmp_path / "w.pt")
    assert caught.value.code == 66


def build(
    name: str = "small_cnn", *, classes: int = 4, seed: int = 0, size: int = 16, channels: int = 3, **args: Any
) -> nn.Module:
    shape = Shape(channels=channels, size=(size, size))
    return registry.build_model(ModelConfig(name=name, args=args), classes=classes, shape=shape, seed=seed)


def write(net: nn.Module, folder: Path) -> str:
    """The path of a file with the network's weights."""
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, folder / "w.safetensors")
    return str(folder / "w.safetensors")


@pytest.mark.parametrize("name", ["small_cnn", "resnet18"])
def test_a_network_gets_all_its_weights(tmp_path: Path, name: str) -> None:
    given, net = build(name, seed=1), build(name, seed=2)
    notes = weights.load_weights(net, write(given, tmp_path))
    assert all(torch.equal(tensor, given.state_dict()[key]) for key, tensor in net.state_dict().items())
    number = len(net.state_dict())
    assert notes == (f"{number} of {number} tensors are from {tmp_path}/w.safetensors",)


@pytest.mark.parametrize("name", ["small_cnn", "wide_resnet", "resnet18", "squeezenet1_1", "vit_b_32", "densenet121"])
def test_a_head_with_other_classes_starts_anew_and_is_said(tmp_path: Path, name: str) -> None:
    given, net = build(name, classes=7, seed=1, size=32), build(name, classes=4, seed=2, size=32)
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    notes = weights.load_weights(net, write(given, tmp_path))
    head = notes[1].split(":")[0].split(", ")
    assert notes[1] == f"{', '.join(head)}: 4 classes here, 7 there: newly initialized"
    for key, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[key] if key in head else given.state_dict()[key]), key


def test_a_head_with_other_features_starts_anew_as_a_whole(tmp_path: Path) -> None:
    net = build(size=32)
    notes = weights.load_weights(net, write(build(size=64), tmp_path))
    assert len(notes) == 1
    notes = weights.load_weights(net, write(build(size=48), tmp_path))
    assert "newly initialized" in notes[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_weights_of_other_precision_are_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    net = build()
    path = write(build(seed=1).to(dtype), tmp_path)
    weights.load_weights(net, path)
    assert {tensor.dtype for tensor in net.state_dict().values()} == {torch.float32}


def test_the_layout_in_memory_stays(tmp_path: Path) -> None:
    net = build()
    weights.load_weights(net, write(build(seed=1), tmp_path))
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


UNFIT: dict[str, tuple[dict[str, Any], Callable[[dict[str, Tensor]], None], str]] = {
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


@pytest.mark.parametrize("kind", UNFIT)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path, kind: str, resnet: nn.Module) -> None:
    args, edit, problem = UNFIT[kind]
    named = {name: t.contiguous().clone() for name, t in build("resnet18", seed=1, **args).state_dict().items()}
    edit(named)
    torch.save(named or {"other": torch.zeros(1)}, tmp_path / "w.pt")
    before = {name: tensor.clone() for name, tensor in resnet.state_dict().items()}
    with pytest.raises(Failure) as caught:
        weights.load_weights(resnet, str(tmp_path / "w.pt"))
    assert caught.value.code == 65
    assert problem in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in resnet.state_dict().items())


def test_another_width_is_no_question_of_channels(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="15 of another shape") as caught:
        weights.load_weights(build(width=8), write(build(), tmp_path))
    assert caught.value.fix.startswith("set model.name and model.args")


def test_a_transformers_positions_belong_to_its_size(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        weights.load_weights(build("vit_b_32", size=64), write(build("vit_b_32", size=32), tmp_path))
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
