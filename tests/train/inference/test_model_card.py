"""The model card says what the model was trained on, how well it does, and how to load it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard, ModelCardData
from jobs import trained
from PIL import ExifTags, Image

from train.config.schema import DataConfig, ModelConfig, OptimConfig, RunConfig, RunSection, TrainConfig
from train.data.preprocessing import Preprocessing
from train.data.shape import Shape
from train.evaluation.results import EvaluationResult, FinalScore
from train.inference import checkpoints, evaluate, file_formats, inputs, model_card
from train.inference.inputs import InputSpec
from train.inference.model_card import ModelFacts
from train.inference.model_code import ModelCode
from train.tasks import TargetScale

RESULT = {"accuracy": 0.875, "loss": 0.5, "samples": 16, "macro_f1": 0.8125, "recall": [0.75, None]}
RECORDED = {
    "training": {"precision": "bf16", "steps_per_epoch": 16, "device": "NVIDIA H100"},
    "versions": {"torch": "2.15.0", "train-image": "0.1.0"},
    "git": "0123abc",
}
STATE: dict[str, Any] = {
    "state": {"evaluated": 40, "result": RESULT},
    "data": {"classes": ["cat", "dog"], "training": 1600, "held_out": 400},
    "world_size": 4,
}
ABOUT = ModelFacts(
    config=RunConfig(run=RunSection(name="cats"), train=TrainConfig(global_batch_size=100)),
    input_spec=InputSpec(classes=("cat", "dog"), shape=Shape(channels=3, size=(8, 8)), bytes_=True),
    path=Path("runs/cats/checkpoints/step-00000040"),
    step=40,
    tensors={"weight": torch.zeros(5, 5)},
    averaged=True,
    state=STATE,
    recorded=RECORDED,
)
CODE = ModelCode(
    imports=("import runpy",), lines=("network = runpy.run_path('out/model.py')['make_model']()",), file=""
)


def card(about: ModelFacts, *formats: str) -> str:
    return model_card.render_card(about, "out", CODE, formats)


def rows(about: ModelFacts) -> dict[str, str]:
    """The facts of all tables."""
    lines = [line.strip("| ").split(" | ") for line in card(about).splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1] for cells in lines if len(cells) == 2}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("network", "small\\_cnn"),
        ("takes", "8 x 8 x 3, bytes 0 to 255, given as (byte - 127.5) / 63.75"),
        ("gives", "one score for each of 2 classes"),
        ("weights", "25 numbers in 1 tensor, averaged over steps (train.ema\\_decay)"),
        ("training samples", "1,600"),
        ("validation samples", "400"),
        ("classes", "cat, dog"),
        ("steps", "40"),
        ("epochs", "2.5"),
        ("global batch", "100"),
        ("precision", "bf16"),
        ("world", "4 ranks"),
        ("accuracy", "87.50% of 16 validation images, loss 0.5000"),
        ("macro F1", "0.8125"),
        ("cat", "75.0%"),
        ("dog", "\\-"),
        ("torch", "2.15.0"),
        ("git", "0123abc"),
    ],
)
def test_the_card_tells(name: str, text: str) -> None:
    assert rows(ABOUT)[name] == text


@pytest.mark.parametrize(("scaling", "text"), [("none", "0.1"), ("linear", "0.8"), ("sqrt", "0.282843")])
def test_the_learning_rate_is_the_highest_that_it_was_trained_with(scaling: Any, text: str) -> None:
    optim = OptimConfig(name="sgd", lr=0.1, lr_scaling=scaling, base_batch_size=256)
    scaled = replace(ABOUT.config, optim=optim, train=TrainConfig(global_batch_size=2048))
    assert rows(replace(ABOUT, config=scaled))["optimizer"] == f"sgd, learning rate {text}, {optim.schedule}"


def head(about: ModelFacts) -> ModelCardData:
    """What a hub reads, by its own program."""
    return ModelCard(card(about)).data  # type: ignore[no-any-return]


def test_a_hub_reads_licence_tags_and_scores_in_the_head() -> None:
    data = head(ABOUT)
    assert (data.license, data.library_name, data.pipeline_tag) == ("unknown", "pytorch", "image-classification")
    assert data.tags == ["image-classification", "pytorch", "small_cnn"]
    assert "accuracy" in data.metrics
    assert "top5_accuracy" not in data.metrics  # of two classes it is always 1
    assert data.datasets == []  # a hub does not have this data
    assert data.model_name == "cats"
    scores = {score.metric_type: (score.metric_value, score.dataset_split) for score in data.eval_results or ()}
    assert scores["accuracy"] == (0.875, "validation")
    assert scores["macro_f1"] == (0.8125, "validation")


def test_the_head_names_published_data_and_the_folder_of_others() -> None:
    def of(**data: Any) -> ModelCardData:
        return head(replace(ABOUT, config=replace(ABOUT.config, data=DataConfig(**data))))

    assert of(name="cifar10").datasets == ["cifar10"]
    own = of(name="folder", root="/secret/place/pets")
    assert {(score.dataset_type, score.dataset_name) for score in own.eval_results or ()} == {("imagefolder", "pets")}
    assert "/secret" not in card(replace(ABOUT, config=replace(ABOUT.config, data=DataConfig(root="/secret/pets"))))
    hostile = of(name="table", root="a: b\n---\nlicense: mit")
    assert (hostile.license, (hostile.eval_results or [])[0].dataset_name) == ("unknown", "a: b\n---\nlicense: mit")


@pytest.mark.parametrize(
    ("task", "size", "tag", "pipeline"),
    [
        ("multi_label", (8, 8), "image-classification", "image-classification"),
        ("regression", (8, 8), "image-regression", None),
        ("classification", (4, 8, 8), "video-classification", "video-classification"),
    ],
)
def test_the_head_names_the_task_as_a_hub_does(
    task: str, size: tuple[int, ...], tag: str, pipeline: str | None
) -> None:
    spec = replace(ABOUT.input_spec, task=task, shape=Shape(channels=3, size=size))
    spec = replace(spec, target=TargetScale(mean=0.0, std=1.0) if task == "regression" else None)
    data = head(replace(ABOUT, input_spec=spec, step=41))
    assert (data.tags[0], data.pipeline_tag) == (tag, pipeline)  # type: ignore[index]
    assert data.eval_results is None  # these weights were not measured


def test_the_score_of_the_test_split_is_told_where_it_is_of_these_weights() -> None:
    final = FinalScore(
        step=40, trained_steps=80, checkpoint="", result=EvaluationResult.from_json(RESULT | {"accuracy": 0.8})
    )
    measured = replace(ABOUT, final=final)
    assert "80.00%" in rows(measured)["test"]
    scores = {(score.dataset_split, score.metric_value) for score in head(measured).eval_results or ()}
    assert {("test", 0.8), ("validation", 0.875)} <= scores
    for other in (replace(measured, step=41), replace(measured, flipped=True), replace(measured, changed=("a",))):
        assert "test" not in rows(other)
        assert all(score.dataset_split != "test" for score in head(other).eval_results or ())


def test_a_diverged_run_is_named_first() -> None:
    assert "> **Caution:** this run ended" in card(replace(ABOUT, caution="this run ended with exit code 90"))


def test_the_licence_is_said_to_be_open() -> None:
    assert "## Licence\n\nNot stated." in card(ABOUT)


def test_scores_of_other_weights_are_not_shown() -> None:
    text = card(replace(ABOUT, step=41))
    assert "Not measured at this step" in text
    assert "87.50%" not in text


def test_without_the_runs_record_this_machines_versions_are_called_so() -> None:
    named = rows(replace(ABOUT, recorded={}))
    assert "torch (at export)" in named
    assert "epochs" not in named


def test_a_class_name_is_text_and_breaks_no_table() -> None:
    odd = replace(ABOUT.input_spec, classes=("a|b\n# c", "<img>"))
    lines = card(replace(ABOUT, input_spec=odd)).splitlines()
    assert "# c" not in lines
    assert "| a\\|b\\\\n\\# c | 75.0% |" in lines
    assert not any("<img>" in line for line in lines)


def test_code_of_the_users_own_is_asked_for_by_its_file() -> None:
    own = replace(ABOUT.config, model=ModelConfig(name="pkg.net:make"))
    assert "have pkg/net.py beside your own program" in card(replace(ABOUT, config=own))
    assert "beside your own program" not in card(ABOUT)


def test_that_a_file_of_the_folder_is_code_is_said() -> None:
    assert "`model.py` is code" in card(ABOUT)
    library = ModelCode(imports=("import torchvision",), lines=("network = torchvision.models.resnet18()",))
    assert "is code" not in model_card.render_card(ABOUT, "out", library)
    assert "may unpickle objects" in card(ABOUT, "torch")


@pytest.mark.parametrize("made", ["files", "pictures", "arrays"])
def test_that_nobody_knows_how_arrays_were_made_is_in_the_card(made: Any) -> None:
    text = card(replace(ABOUT, input_spec=replace(ABOUT.input_spec, origin=made)))
    assert ("how they were made of images is known to whoever wrote them" in text) == (made == "arrays")
    assert ("scaled as in the training" in text) == (made != "arrays")


def test_of_clips_no_image_file_is_spoken() -> None:
    clips = replace(ABOUT.input_spec, shape=Shape(channels=3, size=(4, 8, 8)), origin="arrays")
    assert "Image files become" not in card(replace(ABOUT, input_spec=clips))


@pytest.mark.parametrize("name", file_formats.FORMATS)
def test_each_format_has_lines_of_its_own(name: str) -> None:
    assert file_formats.FORMATS[name].file in card(ABOUT, name)
    assert file_formats.FORMATS[name].file not in card(ABOUT)


@pytest.mark.parametrize("size", [(8, 8), (4, 8, 8)])
def test_the_code_has_about_eight_lines_after_its_imports_and_functions(size: tuple[int, ...]) -> None:
    input_spec = replace(ABOUT.input_spec, shape=Shape(channels=3, size=size))
    for code in (
        model_card.loading_example(input_spec, 'my "model"', CODE),
        model_card.loading_example(input_spec, 'my "model"'),
    ):
        own_lines = [line for line in code.rstrip().partition("\n\n")[2].splitlines() if line and line[0] not in " d"]
        assert len(own_lines) <= 9
        assert "train" not in [line.split()[1] for line in code.splitlines() if line.startswith(("import", "from"))]
        compile(code, "README.md", "exec")


def test_published_weights_keep_their_normalization_crop_and_interpolation() -> None:
    published = Preprocessing(
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop_ratio=0.875, interpolation="bicubic"
    )
    spec = replace(ABOUT.input_spec, preprocessing=published)
    about = replace(ABOUT, input_spec=spec)
    assert "(byte / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]" in rows(about)["takes"].replace("\\", "")
    lines = model_card.loading_example(spec, "out", CODE)
    assert "image.resize(scaled_size(*image.size), Image.Resampling.BICUBIC)" in lines
    assert "/ 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])" in lines
    assert "numpy.float32([0.485, 0.456, 0.406])" in model_card.loading_example(spec, "out")


def write_photos(folder: Path) -> list[Path]:
    """Photos of odd sizes and of all modes and orientations, smooth enough to be told apart by a pixel, and noise."""
    photos, noise = [], np.random.default_rng(0)

    def save(name: str, image: Image.Image, **options: Any) -> None:
        image.save(folder / name, **options)
        photos.append(folder / name)

    def draw(width: int, height: int, mode: str = "RGB") -> Image.Image:
        x, y = np.meshgrid(np.arange(width), np.arange(height))
        waves = np.stack([(x * 7 + y * 3) % 256, (x * y) % 256, noise.integers(0, 256, (height, width))], axis=-1)
        return Image.fromarray(waves.astype(np.uint8)).convert(mode)

    for width, height in [(33, 33), (37, 51), (500, 333), (333, 501), (64, 64), (9, 300), (301, 8), (1, 1), (640, 427)]:
        save(f"{width}x{height}.jpg", draw(width, height), quality=95)
        save(f"{width}x{height}.png", draw(width, height))
    for orientation in range(1, 10):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        save(f"turned-{orientation}.jpg", draw(300, 201), exif=exif)
        save(f"turned-{orientation}.png", draw(30, 21), exif=exif)
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    save("turned-by-xmp.jpg", draw(120, 81), xmp=xmp)
    save("turned.tif", draw(60, 41), tiffinfo={274: 6})
    for mode in ("L", "RGBA", "P", "LA", "1", "CMYK"):
        save(f"{mode}.tif" if mode == "CMYK" else f"{mode}.png", draw(150, 101, mode))
    save("gray.jpg", draw(400, 267, "L"))
    save("cmyk.jpg", draw(400, 267, "CMYK"))
    save("photo.webp", draw(150, 101))
    return photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_photos(tmp_path_factory.mktemp("photos"))


def read_by_the_card(spec: InputSpec) -> Callable[[Path], Image.Image]:
    """The function that the card's lines define."""
    names: dict[str, Any] = {}
    lines, call, _ = model_card.loading_example(spec, "out").partition('image = read_image("photo.jpg")')
    assert call
    exec(lines, names)
    return names["read_image"]  # type: ignore[no-any-return]


PREPROCESSINGS: dict[str, dict[str, Any]] = {
    "the whole middle": {},
    "the whole middle, decoded at full size": {"decode": "exact"},
    "the middle of 0.875": {"crop_ratio": 0.875},
    "the middle of 0.875, decoded at full size": {"crop_ratio": 0.875, "decode": "exact"},
    "the middle of 224 / 232": {"crop_ratio": 224 / 232, "interpolation": "bicubic"},
    "the middle of 0.95": {"crop_ratio": 0.95, "interpolation": "bicubic", "decode": "fast"},
    "a border": {"fit": "pad", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    "a border, decoded at full size": {"fit": "pad", "decode": "exact"},
    "another shape": {"fit": "stretch", "interpolation": "bicubic"},
    "another shape, decoded at full size": {"fit": "stretch", "decode": "exact"},
}


@pytest.mark.parametrize(("size", "channels"), [((32, 32), 3), ((24, 40), 1), ((65, 33), 3), ((224, 224), 3)])
@pytest.mark.parametrize("preprocessing", PREPROCESSINGS.values(), ids=PREPROCESSINGS)
def test_the_lines_read_a_photo_as_the_evaluation_does(
    photos: list[Path], preprocessing: dict[str, Any], channels: int, size: tuple[int, int]
) -> None:
    chosen = Preprocessing(**preprocessing)
    chosen = replace(chosen, mean=chosen.mean[:channels], std=chosen.std[:channels])
    spec = replace(ABOUT.input_spec, preprocessing=chosen, shape=Shape(channels=channels, size=size))
    read = read_by_the_card(spec)
    for photo in photos:
        ours = inputs.read_image(photo, spec.shape, spec.preprocessing)
        others = np.asarray(read(photo)).reshape(ours.shape)
        assert np.array_equal(others, ours), f"{photo.name}: {np.abs(others.astype(int) - ours).max()} of 255"


def test_images_that_were_no_files_are_decoded_at_full_size(photos: list[Path]) -> None:
    spec = replace(ABOUT.input_spec, origin="pictures")
    read = read_by_the_card(spec)
    for photo in photos:
        ours = inputs.read_image(photo, spec.shape, spec.preprocessing, draft=False)
        assert np.array_equal(np.asarray(read(photo)), ours)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints at each of eight steps, evaluated after steps 4 and 8; its last start's record is made up."""
    folder = tmp_path_factory.mktemp("run")
    trained(folder, "checkpoint.every_steps=1", "checkpoint.keep=9")
    (folder / "run.json").write_text('{"starts": [], "training": {"precision": "fp32"}, "versions": 5}')
    return folder


def about(run: Path, step: int) -> ModelFacts:
    checkpoint = checkpoints.choose_checkpoint(str(run / "checkpoints" / f"step-{step:08d}"))
    config, _ = checkpoints.load_config(checkpoint, None, ())
    return model_card.collect_model_facts(config, checkpoint)


def test_scores_are_those_of_the_weights_themselves(run: Path) -> None:
    assert isinstance(about(run, 8).result, EvaluationResult)
    assert about(run, 6).result is None  # what was measured at step 4 is of other weights


def test_the_tensors_are_those_that_an_evaluation_measures(run: Path) -> None:
    facts, measured = (
        about(run, 8),
        evaluate.load_weights(checkpoints.choose_checkpoint(str(run / "checkpoints" / "step-00000008"))),
    )
    assert facts.tensors.keys() == measured.tensors.keys()
    assert all(torch.equal(tensor, measured.tensors[name]) for name, tensor in facts.tensors.items())


def test_the_runs_record_is_read_where_the_checkpoint_lies_in_its_run(run: Path, tmp_path: Path) -> None:
    assert model_card.submapping(about(run, 8).recorded, "training") == {"precision": "fp32"}
    assert model_card.submapping(about(run, 8).recorded, "versions") == {}  # not what it should be
    alone = shutil.copytree(run / "checkpoints" / "step-00000008", tmp_path / "elsewhere" / "step-00000008")
    config, _ = checkpoints.load_config(checkpoint := checkpoints.choose_checkpoint(str(alone)), None, ())
    assert model_card.collect_model_facts(config, checkpoint).recorded == {}
