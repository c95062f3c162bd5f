"""Files and folders with weights: read, or refused with what to do."""

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
from train.models import weights

NAMED = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}


def saved(folder: Path, *, step: int = 3, **groups: dict[str, Tensor]) -> Path:
    """A run's folder with one checkpoint."""
    format.save_checkpoint(folder / "checkpoints", step=step, tensors={"model": NAMED, **groups}, metadata={}, keep=9)
    return folder


def same(tensors: dict[str, Tensor]) -> bool:
    return tensors.keys() == NAMED.keys() and all(torch.equal(tensors[name], NAMED[name]) for name in NAMED)


def test_safetensors_are_read(tmp_path: Path) -> None:
    save_file(NAMED, tmp_path / "w.safetensors")
    assert same(weights.read_weights(tmp_path / "w.safetensors").tensors)


@pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".ckpt"])
@pytest.mark.parametrize(
    "content",
    [
        NAMED,
        OrderedDict(NAMED),
        {"state_dict": NAMED, "epoch": 3},
        {"model": NAMED, "optimizer": {"lr": 0.1}},
        {"model_state_dict": NAMED},
        {"network": NAMED, "epoch": 3},
        {"state_dict_ema": NAMED, "optimizer": {"state": {0: NAMED}, "param_groups": [{"lr": 0.1}]}},
    ],
    ids=["plain", "ordered", "state_dict", "model", "model_state_dict", "another key", "the only key"],
)
def test_state_dicts_are_found_wherever_they_are_kept(tmp_path: Path, content: Any, ending: str) -> None:
    torch.save(content, tmp_path / f"w{ending}")
    assert same(weights.read_weights(tmp_path / f"w{ending}").tensors)


OTHERS = {name: tensor + 1 for name, tensor in NAMED.items()}


@pytest.mark.parametrize(
    ("content", "taken", "left"),
    [
        ({"state_dict_ema": OTHERS, "state_dict": NAMED}, "state_dict", "state_dict_ema"),
        ({"model": NAMED, "model_ema": OTHERS, "epoch": 3}, "model", "model_ema"),
        ({"ema": OTHERS, "model_state_dict": NAMED}, "model_state_dict", "ema"),
        ({"state_dict": NAMED, "model": OTHERS, "teacher": OTHERS}, "state_dict", "model, teacher"),
    ],
)
def test_of_several_weights_in_a_file_it_is_said_which_are_taken(
    tmp_path: Path, content: Any, taken: str, left: str
) -> None:
    torch.save(content, tmp_path / "w.pth")
    read = weights.read_weights(tmp_path / "w.pth")
    assert same(read.tensors)
    (note,) = read.notes
    assert f"the weights under {taken} are taken, and not those under {left}:" in note


def test_several_weights_without_a_known_name_are_refused(tmp_path: Path) -> None:
    torch.save({"student": NAMED, "teacher": OTHERS}, tmp_path / "w.pth")
    with pytest.raises(Failure, match="none of a known name: student, teacher") as caught:
        weights.read_weights(tmp_path / "w.pth")
    assert caught.value.code == 65


def test_older_files_of_torch_are_read(tmp_path: Path) -> None:
    torch.save(NAMED, tmp_path / "w.pth", _use_new_zipfile_serialization=False)
    assert same(weights.read_weights(tmp_path / "w.pth").tensors)


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/step-00000003"])
def test_a_checkpoint_of_ours_is_read_by_its_folder_or_its_runs(tmp_path: Path, inside: str) -> None:
    found = weights.read_weights(saved(tmp_path / "run") / inside)
    assert same(found.tensors)
    assert found.origin == f"{tmp_path}/run/checkpoints/step-00000003 (weights)"


def test_of_a_runs_checkpoints_the_newest_whole_one_is_read(tmp_path: Path) -> None:
    saved(tmp_path, step=4)
    saved(tmp_path, step=9)
    (tmp_path / "checkpoints/step-00000009/model.safetensors").write_bytes(b"no")
    assert "step-00000004" in weights.read_weights(tmp_path).origin


def test_averaged_weights_are_preferred(tmp_path: Path) -> None:
    found = weights.read_weights(saved(tmp_path, ema={"fc.weight": torch.full((2, 3), 7.0)}))
    assert found.tensors["fc.weight"].unique().tolist() == [7]
    assert found.tensors["fc.bias"].tolist() == [0, 0]
    assert found.origin.endswith("(averaged weights)")


def test_a_link_to_a_checkpoint_is_followed(tmp_path: Path) -> None:
    (tmp_path / "best").symlink_to(saved(tmp_path / "run"))
    assert same(weights.read_weights(tmp_path / "best").tensors)


class Harmful:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


def torch_saved(content: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path)


def written(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def cut(path: Path) -> None:
    torch.save(NAMED, path)
    path.write_bytes(path.read_bytes()[:-300])


def half_safetensors(path: Path) -> None:
    save_file(NAMED, path)
    path.write_bytes(path.read_bytes()[:-9])


BAD: dict[str, tuple[str, Callable[[Path], Any], int, str]] = {
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
    "safetensors of another's": ("w.safetensors", torch_saved(NAMED), 65, "damaged"),
    "a pickle that runs code": ("w.pt", torch_saved({"state_dict": Harmful()}), 77, "mkdir"),
    "a whole network": ("w.pt", torch_saved(nn.Linear(2, 2)), 77, "torch.nn.modules.linear.Linear"),
    "a list": ("w.pt", torch_saved([torch.ones(1)]), 65, "found: a list"),
    "a tensor": ("w.pt", torch_saved(torch.ones(1)), 65, "found: a Tensor"),
    "an empty dict": ("w.pt", torch_saved({}), 65, "found: nothing"),
    "numbers among tensors": ("w.pt", torch_saved({**NAMED, "epoch": 3}), 65, "'epoch', which is no tensor"),
    "numbered tensors": ("w.pt", torch_saved({0: torch.ones(1)}), 65, "0, which is no tensor"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_holds_no_weights_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, make, code, said = BAD[kind]
    monkeypatch.chdir(tmp_path)
    make(tmp_path / name)
    with pytest.raises(Failure) as caught:
        weights.read_weights(tmp_path / name)
    assert caught.value.code == code
    assert said in str(caught.value)
    assert not Path("harmed").exists()


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_an_archive_of_torchscript_is_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(1, 1)), tmp_path / "w.pt")
    with pytest.raises(Failure) as caught:
        weights.read_weights(tmp_path / "w.pt")
    assert caught.value.code == 65


@pytest.mark.parametrize("inside", ["", "checkpoints/step-00000003"])
def test_a_damaged_checkpoint_is_refused_with_a_fix_that_fits(tmp_path: Path, inside: str) -> None:
    saved(tmp_path)
    (tmp_path / "checkpoints/step-00000003/model.safetensors").write_bytes(b"no")
    with pytest.raises(Failure) as caught:
        weights.read_weights(tmp_path / inside)
    assert (caught.value.code, caught.value.fix) == (65, "name another checkpoint in model.weights")


@pytest.mark.skipif(os.geteuid() == 0, reason="machine: root may read everything")
def test_a_file_that_may_not_be_read_is_missing_input(tmp_path: Path) -> None:
    torch.save(NAMED, tmp_path / "w.pt")
    (tmp_path / "w.pt").chmod(0)
    with pytest.raises(Failure) as caught:
        weights.read_weights(tmp_path / "w.pt")
    assert caught.value.code == 66
