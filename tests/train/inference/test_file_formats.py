"""The files of torch.export and ONNX compute what the trained network computes, or they are not written."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
import torch
from inference import export_run
from jobs import trained
from torch import Tensor

from entrypoint import Failure
from train.inference import export, file_formats

FORMATS = ("torch", "onnx")


def exported(folder: Path, *settings: str, formats: tuple[str, ...] = FORMATS, named: tuple[str, ...] = ()) -> Path:
    """A tiny run in `folder`, and its export."""
    trained(folder / "run", *settings)
    return export_run(folder / "run", folder / "model", *named, formats=formats)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("exported"))


def run_torch(path: Path, images: Tensor) -> Tensor:
    return torch.export.load(path / "model.pt2").module()(images)  # type: ignore[no-any-return]


def run_onnx(path: Path, images: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(path / "model.onnx", providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


RUN = {"torch": run_torch, "onnx": run_onnx}
# A batch of a size that the export did not compare.
BATCH_SIZE = 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_computes_what_the_network_computes(model: Path, name: str) -> None:
    images = torch.randn(BATCH_SIZE, 3, 8, 8)
    expected = export.load_exported(model).network(images)
    torch.testing.assert_close(RUN[name](model, images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [
        ("model.name=cnn3d", "data.frames=3"),
        ("model.name=wide_resnet", "model.args={width: 1}"),
        ("model.name=resnet18", "model.args={}"),
        ("model.name=mobilenet_v3_small", "model.args={}", "data.image_size=32"),
        ("model.name=shufflenet_v2_x0_5", "model.args={}", "data.image_size=32"),
    ],
    ids=lambda settings: settings[0],
)
def test_so_it_is_for_other_networks(tmp_path: Path, settings: tuple[str, ...]) -> None:
    model = exported(tmp_path, *settings, "train.max_steps=1")
    loaded = export.load_exported(model)
    images = torch.randn(BATCH_SIZE, *loaded.shape.input)
    expected = loaded.network(images)
    for run in RUN.values():
        torch.testing.assert_close(run(model, images), expected, rtol=1e-4, atol=1e-4)


def test_model_json_says_how_far_the_outputs_were_apart(model: Path) -> None:
    described = json.loads((model / "model.json").read_text())["files"]
    assert {entry["format"]: name for name, entry in described.items()} == {"torch": "model.pt2", "onnx": "model.onnx"}
    for name, entry in described.items():
        assert entry["sha256"] == hashlib.sha256((model / name).read_bytes()).hexdigest()
        assert entry["compared"]["batch_sizes"] == [1, 5]
        assert 0 <= entry["compared"]["largest_difference"] <= entry["compared"]["tolerance"] == 1e-4
    assert described["model.onnx"]["opset"] == 18


def test_the_onnx_file_tells_what_it_takes_and_gives(model: Path) -> None:
    session = onnxruntime.InferenceSession(model / "model.onnx", providers=["CPUExecutionProvider"])
    (images,), (logits,) = session.get_inputs(), session.get_outputs()
    assert (images.name, images.shape[1:], images.type) == ("images", [3, 8, 8], "tensor(float)")
    assert (logits.name, logits.shape[1:]) == ("logits", [2])
    assert isinstance(images.shape[0], str)  # any number of images
    metadata = {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}
    described = json.loads((model / "model.json").read_text())
    assert metadata["classes"] == described["classes"]
    assert metadata["input"].items() <= described["input"].items()
    assert metadata["input"]["preprocessing"]["mean"] == [0.5]
    assert metadata["output"] == described["output"]


@pytest.mark.parametrize("name", ["model.pt2", "model.onnx"])
def test_loading_an_export_does_not_read_these_files(model: Path, name: str) -> None:
    content = (model / name).read_bytes()
    (model / name).write_bytes(b"something else")
    assert export.load_exported(model).classes == ("outline-0", "outline-1")
    (model / name).write_bytes(content)


# Networks of users, as factories; each takes images of 8 x 8 pixels.
OWN = """
import torch
from torch import nn

class Branches(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.last = nn.Linear(192, classes)
    def forward(self, x):
        scores = self.last(x.flatten(1))
        if scores.sum() > 0:
            return scores
        return 2 * scores

class Draws(Branches):
    def forward(self, x):
        return self.last(x.flatten(1)) + torch.rand(1)

class Bessel(Branches):
    def forward(self, x):
        return torch.special.i0e(self.last(x.flatten(1)))
"""
REFUSED = {
    "Branches": ("torch.export cannot write this network", "own_network.py, line 11: ", "data-dependent"),
    "Draws": ("model.pt2 gives other outputs", "a difference of", "draws random numbers"),
    "Bessel": ("torch.onnx.export cannot write this network", "i0e", "leave onnx out"),
}


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("network", REFUSED)
def test_a_network_that_a_format_cannot_hold_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], network: str, exists: bool
) -> None:
    (tmp_path / "own_network.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "own_network", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    if exists:
        (tmp_path / "model").mkdir()
    name = f"model.name=own_network:{network}"
    with pytest.raises(Failure) as caught:
        exported(tmp_path, name, "train.max_steps=1", named=(name,))
    text = " ".join(filter(None, (str(caught.value), caught.value.found, caught.value.fix)))
    assert caught.value.code == 64
    assert all(words in text for words in REFUSED[network]), text
    assert "\n" not in str(caught.value.found)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".py" and path.name != "__pycache__") == [
        *(["model"] if exists else []),
        "run",
    ]
    assert not exists or list((tmp_path / "model").iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_network_of_more_than_two_gigabytes_is_refused_by_onnx() -> None:
    with torch.device("meta"):
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3 * 2**20)).eval()
    program = torch.export.export(network, (torch.zeros(2, 3, 8, 8, device="meta"),))
    with pytest.raises(Failure, match="too large") as caught:
        file_formats.FORMATS["onnx"].encode(program, {})
    assert caught.value.code == 64


def test_an_output_that_is_not_a_number_is_a_difference() -> None:
    difference: Callable[[Tensor, Tensor], float] = file_formats._largest_difference
    nan = torch.tensor([[float("nan"), 1.0]])
    assert not difference(nan, nan) <= file_formats.TOLERANCE
    assert not difference(torch.ones(2, 3), torch.ones(2, 2)) <= file_formats.TOLERANCE
    assert difference(torch.tensor([[2.0, 1000.05]]), torch.tensor([[2.0, 1000.0]])) == pytest.approx(5e-5, rel=0.1)
