"""Grad-CAM finds the region that a network looks at, wherever its last feature map is."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from images import write_image
from jobs import forget_accelerate, trained
from PIL import Image
from torch import Tensor, nn

from entrypoint import Failure
from train import __main__ as front
from train.data.preprocessing import DEFAULT_PREPROCESSING
from train.inference import explanation


def red_and_green(*, size: int = 32) -> nn.Sequential:
    """A network with two classes: how much red, and how much green. Which region matters is known."""
    convolution = nn.Conv2d(3, 2, 3, padding=1, bias=False)
    with torch.no_grad():
        convolution.weight.zero_()
        convolution.weight[0, 0] = convolution.weight[1, 1] = 1 / 9
    linear = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(2))
    features = nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear).eval()


def squares() -> Tensor:
    """A large red square at the upper left and a small green one at the lower right, and the other way round."""
    images = torch.zeros(2, 3, 32, 32)
    images[0, 0, 2:14, 2:14] = images[1, 1, 2:14, 2:14] = 1
    images[0, 1, 22:28, 22:28] = images[1, 0, 22:28, 22:28] = 1
    return images


def test_the_heat_is_where_the_evidence_for_the_prediction_is() -> None:
    heat = explanation.compute_heat_maps(red_and_green(), squares())
    assert heat.shape == (2, 32, 32)
    for image in heat:
        assert image[4:12, 4:12].min() > 0.9
        assert image[20:, 20:].max() == 0  # the other colour speaks for the other class
        assert (image.min(), image.max()) == (0, 1)


def test_another_output_than_the_highest_can_be_explained() -> None:
    heat = explanation.compute_heat_maps(red_and_green(), squares(), [1, 1])
    assert heat[0, 23:27, 23:27].min() > 0.9
    assert heat[0, :16, :16].max() == 0
    assert heat[1, 4:12, 4:12].min() > 0.9


def test_frozen_weights_and_many_images_make_no_difference() -> None:
    network = red_and_green()
    images = squares().repeat(12, 1, 1, 1)
    free = explanation.compute_heat_maps(network, images)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    assert torch.equal(explanation.compute_heat_maps(network, images), free)
    assert torch.allclose(free[22:], explanation.compute_heat_maps(network, squares()))
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(not module._forward_hooks for module in network.modules())


class ChannelsLast(nn.Module):
    """The same network, whose last feature map is [n, rows, columns, channels] as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.last, self.head = red_and_green()[0], nn.Identity(), red_and_green()[3]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.last(self.features(images).movedim(1, -1)).mean(dim=(1, 2)))  # type: ignore[no-any-return]


def test_a_map_with_its_channels_last_is_the_same_map() -> None:
    heat = explanation.compute_heat_maps(ChannelsLast().eval(), squares())
    assert torch.allclose(heat, explanation.compute_heat_maps(red_and_green(), squares()))


def test_an_image_in_which_nothing_speaks_for_the_prediction_stays_cold() -> None:
    assert explanation.compute_heat_maps(red_and_green(), torch.zeros(1, 3, 32, 32)).max() == 0


def vit() -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=3
    )


class TokensOnly(nn.Module):
    """A network without any map."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :2]


@pytest.mark.parametrize(
    ("network", "name"), [(vit, "VisionTransformer"), (TokensOnly, "TokensOnly")], ids=["vit", "flat"]
)
def test_a_network_without_a_last_map_on_the_image_is_refused_by_name(
    network: Callable[[], nn.Module], name: str
) -> None:
    with pytest.raises(Failure) as caught:
        explanation.refuse_network_without_map(network().eval(), torch.zeros(1, 3, 32, 32), "--explain")
    assert name in (caught.value.found or "")
    assert "leave --explain out" in (caught.value.fix or "")


@pytest.mark.parametrize("family", ["resnet18", "shufflenet_v2_x0_5"])
@pytest.mark.parametrize("size", [(64, 96)])
def test_networks_of_torchvision_have_a_map(family: str, size: tuple[int, int]) -> None:
    network = torchvision.models.get_model(family, num_classes=3).eval()
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    explanation.refuse_network_without_map(network, images, "--explain")
    assert explanation.compute_heat_maps(network, images).shape == (1, *size)


@pytest.mark.parametrize(
    ("shape", "channels_last"),
    [
        ((2, 512, 7, 7), False),
        ((2, 7, 7, 768), True),
        ((2, 512, 7, 11), False),
        ((2, 2, 1, 1), None),  # pooled
        ((2, 512, 1, 1), None),
        ((2, 12, 197, 64), None),  # the queries of a ViT
        ((2, 197, 768), None),
    ],
)
def test_a_map_is_known_by_its_shape(shape: tuple[int, ...], channels_last: bool | None) -> None:
    width = 352 if shape[-1] == 11 else 224
    assert explanation._channels_last(torch.empty(shape), (224, width)) is channels_last


def test_the_heat_map_lies_over_the_image_and_leaves_it_visible() -> None:
    image = np.full((8, 8, 3), 128, np.uint8)
    heat = np.zeros((8, 8), np.float32)
    heat[:, 4:] = 1
    blended = explanation.blend(image, heat)
    assert (blended[:, :4] == 128).all()
    assert blended[0, 7, 0] > 180  # inferno's yellow
    assert explanation.blend(image[..., 0], heat).shape == (8, 8, 3)


def test_a_picture_holds_the_image_twice_and_enlarged() -> None:
    png = explanation.draw_explanation(np.zeros((32, 48, 3), np.uint8), np.zeros((32, 48), np.float32), "café 98.7%")
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.size == (2 * 48 * 7 + 8, 32 * 7 + 26)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    trained(folder, "train.max_steps=1")
    return folder


def predict(*words: str | Path) -> int:
    forget_accelerate()
    try:
        return front.run_command(["predict", *map(str, words)], {"ENTRYPOINT_DEVICE": "cpu"})
    finally:
        forget_accelerate()


def test_each_image_gets_a_picture_of_its_name(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one/a.png", "two/a.jpg", "two/b.png"):
        write_image(tmp_path / name, 9)
    (tmp_path / "two/c.png").write_bytes(b"no image")
    assert predict(run, tmp_path / "one", tmp_path / "two", "--explain", tmp_path / "heat") == 65
    assert sorted(path.name for path in (tmp_path / "heat").iterdir()) == ["a-2.png", "a.png", "b.png"]
    assert len(capsys.readouterr().out.splitlines()) == 3
    with Image.open(tmp_path / "heat" / "a.png") as picture:
        assert picture.size == (2 * 224 + 8, 224 + 26)


def test_a_folder_with_files_of_the_user_is_left_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = write_image(tmp_path / "photos" / "a.png", 9)
    before = photo.read_bytes()
    assert predict(run, photo, "--explain", tmp_path / "photos") == 73
    assert photo.read_bytes() == before
    assert capsys.readouterr().out == ""


def test_pictures_have_names_of_their_own_however_long_the_images_names_are(tmp_path: Path) -> None:
    stems = ["cat", "cat", "cat-2", "n" * 251, "n" * 251, "ä" * 125]
    writer = explanation.ExplanationWriter(folder=tmp_path, preprocessing=DEFAULT_PREPROCESSING, bytes_=False)
    count = len(stems)
    paths = [Path(str(number), f"{stem}.png") for number, stem in enumerate(stems)]
    writer.write(torch.zeros(count, 3, 8, 8), torch.zeros(count, 8, 8), paths, [""] * count)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == count
    assert names[:3] == ["cat-2-2.png", "cat-2.png", "cat.png"]
