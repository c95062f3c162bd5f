"""The lines of the model card run where this project is not installed, beside a user's own train.py."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_image
from inference import export_run
from jobs import trained
from PIL import Image
from torch import nn

from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.inference import export, model_code, predict
from train.models import registry


def exported(folder: Path, *settings: str, formats: tuple[str, ...] = (), named: tuple[str, ...] = ()) -> Path:
    """A tiny run in `folder`, and its export."""
    trained(folder / "run", *settings)
    return export_run(folder / "run", folder / "model", *named, formats=formats)


def card_lines(model: Path) -> list[str]:
    """The blocks of Python in the card."""
    return re.findall(r"```python\n(.*?)```", (model / "README.md").read_text(), re.DOTALL)


def run_elsewhere(*programs: tuple[Path, str]) -> list[list[str]]:
    """Run each code in its folder, with the installed packages but without this project; the words that each prints.

    Python without its module `site` reads no .pth file, so an editable installation is not found.
    """
    for folder, _ in programs:
        (folder / "train.py").write_text("raise RuntimeError('the user\\'s own train.py was imported')\n")
    code = f"""
import os, sys
assert 'entrypoint' not in sys.modules
for folder, code in {[(str(folder), code) for folder, code in programs]}:
    os.chdir(folder)
    exec(code, {{}})
    print('end of the program')
    assert 'train' not in sys.modules
"""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    ended = subprocess.run(
        [sys.executable, "-S", "-W", "error::ResourceWarning", "-c", code],
        env={**environ, "PYTHONPATH": os.pathsep.join(site.getsitepackages())},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    return [printed.split() for printed in ended.stdout.split("end of the program\n")[:-1]]


def photograph(folder: Path, file_format: str = "JPEG") -> Path:
    """An image that is no square, with a bright left half. A PNG has the same pixels for every reader."""
    pixels = np.random.default_rng(5).integers(0, 120, (20, 32, 3), np.uint8)
    pixels[:, :16] += 120
    Image.fromarray(pixels).save(folder / "photo.jpg", file_format)
    return folder / "photo.jpg"


def predicted_class(model: Path, image: Path) -> tuple[str, float]:
    """What `train predict` says."""
    loaded = predict.prepare_from_export(model, "cpu", 1)
    (prediction,) = predict.predict_images(loaded, [image], 1, pytest.fail)
    return prediction.values["class"], prediction.values["probability"]


NETWORKS = {
    "small_cnn": (),
    "a resnet with the small stem": ("model.name=resnet18", "model.args={}"),
    "a resnet with its own stem": ("model.name=resnet18", "model.args={small_stem: false}", "data.image_size=32"),
    "an elongated input": ("data.image_size=[8, 16]", "data.fit=pad"),
    "the middle of a scaled image": ("data.crop_ratio=0.875", "data.interpolation=bicubic"),
    "wide_resnet": ("model.name=wide_resnet", "model.args={width: 1}"),
    "a convolutional network of timm": ("model.name=timm/test_resnet", "model.args={drop_path_rate: 0.1}"),
    "a transformer of timm, built for one size": ("model.name=timm/test_vit", "model.args={}", "data.image_size=32"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[tuple[str, float], list[str]]]:
    """For each network what `train predict` names, and what the card's lines print; the run is gone by then."""
    predicted, programs = dict[str, tuple[str, float]](), list[tuple[Path, str]]()
    for network, settings in NETWORKS.items():
        folder = tmp_path_factory.mktemp("network")
        model = exported(folder, *settings, "train.max_steps=2")
        predicted[network] = predicted_class(model, photograph(folder))
        shutil.rmtree(folder / "run")
        (code,) = card_lines(model)
        programs.append((folder, code))
    return dict(zip(NETWORKS, zip(predicted.values(), run_elsewhere(*programs), strict=True), strict=True))


@pytest.mark.parametrize("network", NETWORKS)
def test_they_name_the_class_that_predict_names(
    answers: dict[str, tuple[tuple[str, float], list[str]]], network: str
) -> None:
    (name, probability), printed = answers[network]
    assert printed[0] == name
    assert float(printed[1]) == pytest.approx(probability, abs=1e-4)


def test_they_see_a_transparent_and_turned_image_as_predict_does(tmp_path: Path) -> None:
    model = exported(tmp_path, "train.max_steps=2")
    noise = np.random.default_rng(5).integers(0, 256, (20, 32, 4), np.uint8)
    xmp = b'<rdf:Description tiff:Orientation="6"/>'
    Image.fromarray(noise).save(tmp_path / "photo.jpg", "WEBP", lossless=True, exact=True, xmp=xmp)
    name, probability = predicted_class(model, tmp_path / "photo.jpg")
    (code,) = card_lines(model)
    (printed,) = run_elsewhere((tmp_path, code))
    assert printed[0] == name
    assert float(printed[1]) == pytest.approx(probability, abs=1e-4)


def test_the_lines_for_other_formats_name_the_same_class(tmp_path: Path) -> None:
    model = exported(tmp_path, "train.max_steps=2", formats=("torch", "onnx"))
    name, _ = predicted_class(model, photograph(tmp_path))
    (model / "model.py").unlink()
    code, torch_code, onnx_code = card_lines(model)
    about_network = re.compile(r"^(network|outputs)\b.*\n", re.MULTILINE)
    start, *end = about_network.sub("", code).rstrip().rsplit("\n", 2)
    of_onnx, of_torch = run_elsewhere((tmp_path, onnx_code), (tmp_path, "\n".join([start, torch_code, *end])))
    assert (of_onnx, of_torch[0]) == ([name], name)


def test_the_lines_for_clips_run_too(tmp_path: Path) -> None:
    model = exported(tmp_path, "data.frames=3", "model.name=cnn3d", "train.max_steps=1", formats=("onnx",))
    code, onnx_code = card_lines(model)
    of_torch, of_onnx = run_elsewhere((tmp_path, code), (tmp_path, onnx_code))
    assert of_torch[0] == of_onnx[0]


# A network with numbers that it draws and keeps out of its state dict, as random Fourier features are.
DRAWS = """
import torch
from torch import nn

class Drawn(nn.Module):
    def __init__(self, classes, shape, width):
        super().__init__()
        pixels = shape.channels * shape.size[0] * shape.size[1]
        self.register_buffer("drawn", torch.randn(pixels, width), persistent=False)
        self.last = nn.Linear(width, classes)
    def forward(self, x):
        return self.last((x.flatten(1) @ self.drawn).cos())
"""


def test_a_users_network_is_made_by_the_users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drawing_lines.py").write_text(DRAWS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    name = "model.name=drawing_lines:Drawn"
    model = exported(tmp_path, name, "run.seed=7", "train.max_steps=1", named=(name,))
    photograph(tmp_path, "PNG")
    (code,) = card_lines(model)
    (printed,) = run_elsewhere((tmp_path, code))
    loaded = export.load_exported(model, factory=sys.modules["drawing_lines"].Drawn)
    probabilities = loaded.network(loaded.read([tmp_path / "photo.jpg"])).softmax(1)[0]
    assert float(printed[1]) == pytest.approx(float(probabilities.max()), abs=1e-4)


def built_by(code: model_code.ModelCode) -> nn.Module:
    """The network that the code builds."""
    names: dict[str, nn.Module] = {}
    exec("\n".join(["import torch", *code.imports, *code.lines]), names)
    return names["network"]


def build_both(name: str, *, size: int, channels: int = 3, **args: object) -> tuple[nn.Module, nn.Module]:
    """The network as the card's lines build it, and as this project does."""
    model, shape = ModelConfig(name=name, args=args), Shape(channels=channels, size=(size, size))
    code = model_code.write_model_code(model, classes=7, shape=shape, seed=0, folder="model")
    return built_by(code), registry.model_builder(name)(classes=7, shape=shape, **args)


CHANGED = [
    ("resnet18", 32, 1, {}),
    ("resnext50_32x4d", 64, 3, {"small_stem": False, "zero_init_residual": False}),
    ("mobilenet_v3_small", 64, 4, {"dropout": 0.5}),
    ("vit_b_16", 32, 1, {}),
    ("maxvit_t", 224, 3, {}),
    ("densenet121", 64, 2, {}),
    ("regnet_y_400mf", 64, 3, {}),
    ("shufflenet_v2_x0_5", 64, 5, {}),
    ("squeezenet1_1", 64, 3, {}),
    ("convnext_tiny", 64, 3, {"stochastic_depth_prob": 0.0}),
]


@pytest.mark.parametrize(("name", "size", "channels", "args"), CHANGED, ids=[case[0] for case in CHANGED])
def test_plain_torchvision_builds_the_same_network(
    name: str, size: int, channels: int, args: dict[str, object]
) -> None:
    plain, ours = build_both(name, size=size, channels=channels, **args)
    assert repr(plain) == repr(ours)
    shapes = [{key: tensor.shape for key, tensor in network.state_dict().items()} for network in (plain, ours)]
    assert shapes[0] == shapes[1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_timm_builds_its_network_for_the_classes_channels_and_size_of_the_data(name: str) -> None:
    model, shape = ModelConfig(name=f"timm/{name}", args={"drop_rate": 0.1}), Shape(channels=1, size=(32, 32))
    code = model_code.write_model_code(model, classes=7, shape=shape, seed=0, folder="model")
    assert code.imports == ("import timm",)
    assert built_by(code).eval()(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


def test_an_argument_with_any_name_is_data_and_no_code(tmp_path: Path) -> None:
    name = f"x=open({str(tmp_path / 'executed')!r}, 'w'), y"
    code = model_code._call("dict", {"classes": 2, name: 1, "api_token": "hush"})
    assert eval(code) == {"classes": 2, name: 1, "api_token": "(not shown)"}
    assert not (tmp_path / "executed").exists()


def test_loading_an_export_runs_no_code_in_it(tmp_path: Path) -> None:
    model = exported(tmp_path, "train.max_steps=1", formats=("torch",))
    write_image(tmp_path / "a.png")
    before = predicted_class(model, tmp_path / "a.png")
    mark: Callable[[str], str] = "open({!r}, 'w')".format
    (model / "model.py").write_text(mark(str(tmp_path / "executed")))
    (model / "model.pt2").write_bytes(b"\x80\x04")
    assert predicted_class(model, tmp_path / "a.png") == before
    assert not (tmp_path / "executed").exists()
