"""The evaluation transform of 20 published weights: ours, from their record, against their own library's.

With a crop ratio of 1 the central square is cut before it is scaled, not after, so those pixels are not compared.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision.models import get_model_weights

from train.data import augment, decode
from train.models import pretrained

DOCS = Path(__file__).parents[3] / "docs" / "evidence" / "recipes.md"
TORCHVISION = (
    "resnet50.IMAGENET1K_V1",
    "resnet50.IMAGENET1K_V2",
    "densenet121.IMAGENET1K_V1",
    "inception_v3.IMAGENET1K_V1",
    "mobilenet_v3_large.IMAGENET1K_V2",
    "efficientnet_b3.IMAGENET1K_V1",
    "efficientnet_v2_s.IMAGENET1K_V1",
    "regnet_y_400mf.IMAGENET1K_V2",
    "convnext_tiny.IMAGENET1K_V1",
    "swin_t.IMAGENET1K_V1",
    "vit_b_16.IMAGENET1K_V1",
)
TIMM = (
    "timm/resnet50.a1_in1k",
    "timm/resnet50.a3_in1k",
    "timm/resnet18.fb_swsl_ig1b_ft_in1k",
    "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "timm/deit_tiny_patch16_224.fb_in1k",
    "timm/convnext_tiny.fb_in22k",
    "timm/efficientnet_b0.ra_in1k",
    "timm/swin_tiny_patch4_window7_224.ms_in1k",
    "timm/mobilenetv3_large_100.ra_in1k",
)
CUT_FIRST = "efficientnet_v2_s.IMAGENET1K_V1"  # its crop ratio is 1
SIZES = [(300, 200), (97, 310), (640, 480)]


def photo(width: int, height: int) -> Image.Image:
    """Noise, so that a pixel that is cut or scaled otherwise shows."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def own_transform(name: str, image: Image.Image) -> torch.Tensor:
    """What the library that published the weights makes of an image, [3, side, side]."""
    model, _, tag = name.partition(".")
    if model.startswith("timm/"):
        record = timm.data.resolve_data_config(timm.get_pretrained_cfg(name.removeprefix("timm/")).to_dict())
        made: torch.Tensor = timm.data.create_transform(**record, is_training=False)(image)
    else:
        made = get_model_weights(model)[tag].transforms()(image)
    return made


@pytest.mark.parametrize("name", [name for name in (*TORCHVISION, *TIMM) if name != CUT_FIRST])
def test_published_weights_are_evaluated_on_their_own_librarys_pixels(name: str) -> None:
    record = pretrained.find_published(name).record
    assert record.name == name
    for size in SIZES:
        image = photo(*size)
        pixels = np.array(decode.fit_image(image, record.image_size[0], record.preprocessing))
        ours = augment.normalize(torch.from_numpy(pixels)[None], record.preprocessing)[0]
        torch.testing.assert_close(ours, own_transform(name, image), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*TORCHVISION, *TIMM])
def test_the_docs_list_their_records(name: str) -> None:
    record = pretrained.find_published(name).record
    row = re.search(rf"^\| `{re.escape(name)}` \| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    assert row is not None
    transform = record.preprocessing
    cells = [str(record.image_size[0]), f"{transform.crop_ratio:.4g}", transform.interpolation]
    assert row[1].split(" | ")[:3] == cells
