"""Published weights: their names, their records, and how they go into a model."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import plant
from jobs import trained
from safetensors.torch import save_file
from torch import nn

from entrypoint import Failure
from train.checkpoint import format
from train.config import models
from train.config.schema import ModelConfig, RunConfig
from train.data.preprocessing import Preprocessing
from train.data.shape import Shape
from train.inference import checkpoints, export
from train.models import pretrained, registry, weights

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def build(name: str, *, size: int = 32, seed: int = 0, classes: int = 4, **args: Any) -> nn.Module:
    shape = Shape(channels=3, size=(size, size))
    return registry.build_model(ModelConfig(name=name, args=args), classes=classes, shape=shape, seed=seed)


def write(net: nn.Module, path: Path, metadata: dict[str, str] | None = None) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, path, metadata)
    return path


@pytest.mark.parametrize(
    ("name", "full_name", "crop_ratio", "interpolation", "image_size"),
    [
        ("resnet50", "resnet50.IMAGENET1K_V2", 224 / 232, "bilinear", (224, 224)),
        ("resnet50.IMAGENET1K_V1", "resnet50.IMAGENET1K_V1", 224 / 256, "bilinear", (224, 224)),
        ("efficientnet_b0", "efficientnet_b0.IMAGENET1K_V1", 224 / 256, "bicubic", (224, 224)),
        ("timm/resnet18", "timm/resnet18.a1_in1k", 0.95, "bicubic", (224, 224)),
        ("timm/resnet18.tv_in1k", "timm/resnet18.tv_in1k", 0.875, "bilinear", (224, 224)),
    ],
)
def test_a_name_has_the_transform_of_its_library(
    name: str, full_name: str, crop_ratio: float, interpolation: str, image_size: tuple[int, int]
) -> None:
    record = pretrained.find_published(name).record
    assert record.name == full_name
    assert record.preprocessing == Preprocessing(
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        crop_ratio=crop_ratio,
        interpolation=interpolation,  # type: ignore[arg-type]
        decode="exact",
    )
    assert (record.image_size, record.classes) == (image_size, 1000)


@pytest.mark.parametrize(
    "model", ["resnet18", "vit_b_16", "inception_v3", "timm/resnet18", "timm/vit_tiny_patch16_224"]
)
def test_every_tag_of_a_model_has_addresses_and_a_command(model: str) -> None:
    entries = list(pretrained._published_of(model))
    assert len({entry.record.name for entry in entries}) == len(entries) > 0
    for entry in entries:
        assert pretrained.find_published(entry.record.name) == entry
        assert all(address.startswith("https://") for address in entry.addresses)
        assert entry.record.name.partition(".")[2] in entry.command


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet50.IMAGENET1K_V3", ("resnet50.IMAGENET1K_V1, resnet50.IMAGENET1K_V2",)),
        ("timm/resnet18.none", ("timm/resnet18.a1_in1k",)),
        ("resnet", ("names no published weights", "write resnet18")),
        ("timm/rsnet18", ("write timm/resnet18",)),
        ("small_cnn", ("names no published weights",)),
    ],
)
def test_a_name_without_weights_is_refused_with_the_names_that_there_are(name: str, words: tuple[str, ...]) -> None:
    with pytest.raises(Failure) as caught:
        pretrained.find_published(name)
    assert caught.value.code == 64
    assert [word for word in words if word not in str(caught.value)] == []


def test_weights_of_squashed_images_stretch_them() -> None:
    assert pretrained.find_published("timm/beitv2_base_patch16_224").record.preprocessing.fit == "crop"
    assert pretrained.find_published("timm/coat_lite_medium_384").record.preprocessing.fit == "stretch"


def test_a_file_that_we_wrote_has_its_record_in_it(tmp_path: Path) -> None:
    record = pretrained.find_published("timm/vit_tiny_patch16_224").record
    file = write(nn.Linear(1, 1), tmp_path / "any.safetensors", record.to_metadata("address", "0" * 64))
    assert pretrained.read_record(file, "small_cnn") == record


@pytest.mark.parametrize(
    ("file", "model", "name"),
    [
        ("resnet50-11ad3fa6.pth", "resnet50", "resnet50.IMAGENET1K_V2"),
        ("resnet50-0676ba61.pth", "resnet50", "resnet50.IMAGENET1K_V1"),
        ("resnet50-0676ba61.pth", "resnet18", "resnet50.IMAGENET1K_V1"),
        ("resnet50.IMAGENET1K_V2.pth", "resnet50", "resnet50.IMAGENET1K_V2"),
        ("timm-resnet18.a1_in1k.pth", "timm/resnet18", "timm/resnet18.a1_in1k"),
        ("resnet18_a1_0-d63eafa0.pth", "timm/resnet18", "timm/resnet18.a1_in1k"),
    ],
)
def test_a_published_name_of_a_file_is_known(tmp_path: Path, file: str, model: str, name: str) -> None:
    torch.save({"weight": torch.zeros(1)}, tmp_path / file)
    record = pretrained.read_record(tmp_path / file, model)
    assert record is not None
    assert record.name == name


@pytest.mark.parametrize(
    ("file", "model"),
    [
        ("resnet18-f37072fd.pth", "resnet18"),
        ("resnet18-f37072fd.pth", "resnet34"),
        ("test_resnet-0123456789abcdef.pth", "timm/test_resnet"),
    ],
)
def test_a_file_under_a_published_name_with_another_content_is_refused(
    tmp_path: Path, file: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model.startswith("timm/"):  # timm publishes this one on the hub alone
        entry = replace(pretrained.find_published(model), addresses=(f"https://example.org/{file}",))
        monkeypatch.setattr(pretrained, "_timm_weights", lambda *arguments: iter([entry]))
    torch.save(build(model, seed=1).state_dict(), tmp_path / file)
    with pytest.raises(Failure, match="has the name of the published weights") as caught:
        weights.load_weights(build(model), str(tmp_path / file), model)
    assert caught.value.code == 65
    assert "train weights fetch" in caught.value.fix


def test_a_file_under_a_published_name_with_its_content_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(build("timm/test_resnet", seed=1).state_dict(), tmp_path / "w.pth")
    digest = hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest()
    file = (tmp_path / "w.pth").rename(tmp_path / f"w-{digest[:8]}.pth")
    entry = replace(pretrained.find_published("timm/test_resnet"), addresses=(f"https://example.org/{file.name}",))
    monkeypatch.setattr(pretrained, "_timm_weights", lambda *arguments: iter([entry]))
    notes = weights.load_weights(build("timm/test_resnet"), str(file), "timm/test_resnet")
    assert notes[1].startswith("the weights are timm/test_resnet")


@pytest.mark.parametrize("name", ["run-20261127.pth", "resnet18-20261127.pth"])
def test_ones_own_file_may_end_in_a_number(tmp_path: Path, name: str) -> None:
    torch.save(build("resnet18", seed=1).state_dict(), tmp_path / name)
    assert len(weights.load_weights(build("resnet18"), str(tmp_path / name), "resnet18")) == 1


UNKNOWN = "the weights' normalization is not known"


def test_weights_without_a_record_say_that_their_normalization_is_not_known(tmp_path: Path) -> None:
    def notes(run: str, *settings: str) -> list[str]:
        words = ("model.name=small_cnn", "model.args={}", "train.max_steps=1", f"model.weights={file}", *settings)
        return [note for note in trained(tmp_path / run, *words).notes if note.startswith(UNKNOWN)]

    file = write(build("small_cnn", size=8, seed=1, classes=2), tmp_path / "w.safetensors")
    (note,) = notes("first")
    assert "data.normalize={mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}" in note
    assert notes("set", "data.normalize={mean: [0.5], std: [0.2]}") == []
    file = tmp_path / "first"
    assert notes("of a run") == []
    np.savez(tmp_path / "a.npz", images=np.zeros((80, 8, 8, 3), np.float32), labels=np.arange(80) % 2)
    file = tmp_path / "w.safetensors"
    assert notes("of floats", "data.name=npz", f"data.root={tmp_path / 'a.npz'}") == []


@pytest.mark.parametrize("file", ["mine.pth", "resnet50.pth", "resnet50-0123456789.pth"])
def test_another_file_has_no_record(tmp_path: Path, file: str) -> None:
    torch.save({"weight": torch.zeros(1)}, tmp_path / file)
    assert pretrained.read_record(tmp_path / file, "resnet50") is None


def test_timms_folder_of_the_hub_has_its_record_beside_the_weights(tmp_path: Path) -> None:
    values = {"tag": "mine", "mean": [0.1], "std": [0.2], "crop_pct": 0.9, "interpolation": "bilinear"}
    values |= {"input_size": [1, 28, 30], "num_classes": 7}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": values}))
    file = write(nn.Linear(1, 1), tmp_path / "model.safetensors")
    record = pretrained.read_record(file, "timm/resnet18")
    assert record is not None
    assert (record.name, record.image_size, record.classes) == ("timm/resnet18.mine", (28, 30), 7)
    assert record.preprocessing == Preprocessing(mean=(0.1,), std=(0.2,), crop_ratio=0.9, decode="exact")
    assert pretrained.read_record(file, "timm/resnet34") is None


def timms_folder(folder: Path, **changes: Any) -> Path:
    """timm's folder of the hub for test_resnet; a change to ... leaves the field out."""
    values = {"tag": "mine", "mean": [0.1] * 3, "std": [0.2] * 3, "crop_pct": 0.9, "interpolation": "bicubic"}
    values |= {"input_size": [3, 32, 32], "num_classes": 4, **changes}
    values = {key: value for key, value in values.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps({"architecture": "test_resnet", "pretrained_cfg": values}))
    return write(build("timm/test_resnet", seed=1), folder / "model.safetensors")


@pytest.mark.parametrize("field", ["mean", "std", "crop_pct", "interpolation", "input_size", "num_classes"])
@pytest.mark.parametrize("value", [None, ...], ids=["null", "missing"])
def test_what_timms_record_lacks_is_noted_and_the_default_is_used(tmp_path: Path, field: str, value: Any) -> None:
    file = timms_folder(tmp_path, **{field: value})
    config = RunConfig(model=ModelConfig(name="timm/test_resnet", weights=str(file)))
    data, default = weights.fit_preprocessing(config), Preprocessing()
    has_normalization = field not in ("mean", "std")
    assert data.normalize == {
        "mean": [0.1] * 3 if has_normalization else [*default.mean],
        "std": [0.2] * 3 if has_normalization else [*default.std],
    }
    assert data.crop_ratio == (1.0 if field == "crop_pct" else 0.9)
    assert data.interpolation == ("bilinear" if field == "interpolation" else "bicubic")
    notes = weights.load_weights(build("timm/test_resnet"), str(file), "timm/test_resnet")
    assert f"{field} not recorded" in notes[1]


@pytest.mark.parametrize("name", ["nearest", "lanczos", "random"])
def test_another_interpolation_of_timms_is_noted_and_the_default_is_used(tmp_path: Path, name: str) -> None:
    file = timms_folder(tmp_path, interpolation=name)
    config = RunConfig(model=ModelConfig(name="timm/test_resnet", weights=str(file)))
    data = weights.fit_preprocessing(config)
    assert (data.interpolation, data.crop_ratio) == ("bilinear", 0.9)
    notes = weights.load_weights(build("timm/test_resnet"), str(file), "timm/test_resnet")
    assert f"interpolation {name}, which is not known here" in notes[1]


def test_a_crop_that_is_larger_than_the_image_is_noted_and_1_is_used(tmp_path: Path) -> None:
    file = timms_folder(tmp_path, crop_pct=1.1)
    config = RunConfig(model=ModelConfig(name="timm/test_resnet", weights=str(file)))
    assert weights.fit_preprocessing(config).crop_ratio == 1.0
    record = pretrained.find_published("timm/volo_d4_448").record
    assert record.preprocessing.crop_ratio == 1.0
    assert "crop_pct is 1.15" in str(record)
    kept = write(nn.Linear(1, 1), tmp_path / "kept.safetensors", record.to_metadata("address", "0" * 64))
    assert pretrained.read_record(kept, "timm/volo_d4_448") == record


def test_all_of_timms_published_records_can_be_read() -> None:
    import timm

    models = {name.partition(".")[0] for name in timm.list_pretrained()}
    assert len(models) > 500
    read = [entry.record for model in models for entry in pretrained._timm_weights(f"timm/{model}")]
    assert {record.name.partition(".")[0] for record in read if record.notes} == {
        "timm/volo_d4_448",
        "timm/volo_d5_448",
        "timm/volo_d5_512",
    }


@pytest.mark.parametrize(
    ("field", "value", "setting"),
    [
        ("std", [0, 0.2, 0.2], {"normalize": {"mean": [0.5], "std": [0.5]}}),
        ("mean", ["0", 0.1, 0.1], {"normalize": {"mean": [0.5], "std": [0.5]}}),
        ("crop_pct", float("nan"), {"crop_ratio": 0.8}),
        ("crop_pct", "0.9", {"crop_ratio": 0.8}),
        ("interpolation", 3, {"interpolation": "bilinear"}),
    ],
)
def test_a_setting_replaces_what_is_impossible_in_the_record(
    tmp_path: Path, field: str, value: Any, setting: dict[str, Any]
) -> None:
    file = timms_folder(tmp_path, **{field: value})
    config = RunConfig(model=ModelConfig(name="timm/test_resnet", weights=str(file)))
    with pytest.raises(Failure, match="the record of the weights is damaged"):
        weights.fit_preprocessing(config)
    data = weights.fit_preprocessing(replace(config, data=replace(config.data, **setting)))
    assert {key: getattr(data, key) for key in setting} == setting
    notes = weights.load_weights(build("timm/test_resnet"), str(file), "timm/test_resnet")
    assert f"data.{next(iter(setting))} is used" in notes[1]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["w.safetensors", "resnet18.IMAGENET1K_V1.safetensors"])
def test_a_pipe_in_the_place_of_weights_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    model = ModelConfig(name="resnet18", weights=str(tmp_path / name))
    weights.fit_preprocessing(RunConfig(model=model))
    assert weights.fit_stem(model) == model
    with pytest.raises(Failure, match="no regular file") as caught:
        weights.load_weights(build("resnet18"), str(tmp_path / name), "resnet18")
    assert caught.value.code == 66


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_checkpoints_tensors_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "step-00000001").mkdir()
    os.mkfifo(tmp_path / "step-00000001" / "model.safetensors")
    model = ModelConfig(name="resnet18", weights="gone.pth")
    assert weights.fit_stem(model, tmp_path) == model


def test_a_run_notes_which_weights_it_began_with(tmp_path: Path) -> None:
    record = pretrained.find_published("timm/test_resnet").record
    file = write(build("timm/test_resnet", seed=1, classes=9), tmp_path / "w.safetensors", record.to_metadata("", ""))
    notes = weights.load_weights(build("timm/test_resnet"), str(file), "timm/test_resnet")
    assert notes[1] == (
        "the weights are timm/test_resnet.r160_in1k, trained for mean (0.5, 0.5, 0.5), std (0.5, 0.5, 0.5), "
        "bilinear resizing, 160 x 160 pixels, crop ratio 0.95"
    )
    assert notes[2] == "fc.weight, fc.bias: 4 classes here, 9 there: newly initialized"


def test_weights_of_another_model_name_that_model(tmp_path: Path) -> None:
    record = pretrained.find_published("timm/test_resnet").record
    file = write(build("timm/test_resnet"), tmp_path / "w.safetensors", record.to_metadata("", ""))
    with pytest.raises(Failure) as caught:
        weights.load_weights(build("resnet18"), str(file), "resnet18")
    assert caught.value.fix == "set model.name=timm/test_resnet"


def test_a_transformer_of_timm_takes_weights_of_another_image_size(tmp_path: Path) -> None:
    given, net = build("timm/test_vit", size=64, seed=1), build("timm/test_vit", size=32, seed=2)
    weights.load_weights(net, str(write(given, tmp_path / "w.safetensors")), "timm/test_vit")
    assert torch.equal(net.state_dict()["blocks.0.attn.qkv.weight"], given.state_dict()["blocks.0.attn.qkv.weight"])
    assert net.state_dict()["pos_embed"].shape != given.state_dict()["pos_embed"].shape


def test_timms_weights_without_a_classifier_get_a_new_one(tmp_path: Path) -> None:
    tensors = {name: t.contiguous() for name, t in build("timm/test_vit", seed=1).state_dict().items()}
    file = tmp_path / "w.safetensors"
    save_file({name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}, file)
    notes = weights.load_weights(build("timm/test_vit"), str(file), "timm/test_vit")
    assert notes[-1] == "head.weight, head.bias: not in these weights: newly initialized"


def test_a_name_finds_its_file_in_the_folder_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    assert models.weights_path("resnet50") == Path("resnet50")
    file = Path("weights/resnet50.IMAGENET1K_V2.safetensors")
    file.touch()
    assert models.weights_path("resnet50.IMAGENET1K_V2") == models.weights_path("resnet50") == file
    Path("weights/resnet50.IMAGENET1K_V1.pth").touch()
    assert models.weights_path("resnet50") == Path("resnet50")  # which of the two?
    assert models.weights_path("resnet50.IMAGENET1K_V1") == Path("weights/resnet50.IMAGENET1K_V1.pth")
    Path("weights/timm-resnet18.a1_in1k.safetensors").touch()
    assert models.weights_path("timm/resnet18") == Path("weights/timm-resnet18.a1_in1k.safetensors")
    assert models.weights_path("weights/mine.pth") == Path("weights/mine.pth")


@pytest.mark.parametrize(
    ("stem", "size", "decided"), [(False, 32, False), (True, 32, True), (False, 224, False), (True, 224, True)]
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_the_weights_decide_the_stem_of_a_resnet(
    tmp_path: Path, stem: bool, size: int, decided: bool, suffix: str
) -> None:
    given = build("resnet18", seed=1, small_stem=stem)
    file = tmp_path / f"w{suffix}"
    write(given, file) if suffix == ".safetensors" else torch.save(given.state_dict(), file)
    fitted = weights.fit_stem(ModelConfig(name="resnet18", weights=str(file)))
    assert fitted.args == {"small_stem": decided}
    net = registry.build_model(fitted, classes=4, shape=Shape(channels=3, size=(size, size)), seed=2)
    weights.load_weights(net, str(file), "resnet18")
    assert torch.equal(net.state_dict()["conv1.weight"], given.state_dict()["conv1.weight"])


def test_a_resumed_run_has_the_stem_of_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000003"
    folder.mkdir()
    write(build("resnet18", small_stem=False), folder / "model.safetensors")
    assert weights.fit_stem(ModelConfig(name="resnet18", weights="gone.pth"), tmp_path).args == {"small_stem": False}


@pytest.mark.parametrize(
    "model",
    [
        ModelConfig(name="resnet18"),
        ModelConfig(name="resnet18", weights="gone.pth"),
        ModelConfig(name="resnet18", weights="gone.pth", args={"small_stem": True}),
        ModelConfig(name="vgg11", weights="gone.pth"),
    ],
)
def test_otherwise_the_config_decides(tmp_path: Path, model: ModelConfig) -> None:
    assert weights.fit_stem(model, tmp_path) == model


def test_a_run_on_small_images_trains_published_stems_and_resumes_without_the_file(tmp_path: Path) -> None:
    given = build("resnet18", seed=1, classes=9, small_stem=False)
    torch.save(given.state_dict(), tmp_path / "resnet18.pth")
    settings = ("model.name=resnet18", f"model.weights={tmp_path / 'resnet18.pth'}", "model.args={}", "optim.lr=1e-9")
    first = trained(tmp_path / "run", *settings, "train.max_steps=1")
    assert first.state.network.state_dict()["conv1.weight"].shape[2:] == (7, 7)
    assert "fc.weight, fc.bias: 2 classes here, 9 there: newly initialized" in first.notes
    (tmp_path / "resnet18.pth").unlink()
    resumed = trained(tmp_path / "run", *settings, "train.max_steps=2")
    assert (resumed.start_step, resumed.state.step) == (1, 2)
    assert resumed.state.network.state_dict()["conv1.weight"].shape[2:] == (7, 7)


RECORDED = {"mean": [0.1], "std": [0.2]}


def write_recorded(path: Path) -> Path:
    """Weights of small_cnn for two classes, as fetched: their record says what they were trained for."""
    record = pretrained.WeightsRecord(
        name="small_cnn.MADE_UP",
        preprocessing=Preprocessing(mean=(0.1,), std=(0.2,), crop_ratio=0.9, interpolation="bicubic"),
        image_size=(32, 32),
        classes=2,
    )
    return write(build("small_cnn", seed=1, classes=2), path, record.to_metadata("address", "0" * 64))


def test_a_run_normalizes_as_its_weights_were_trained_and_resumes_without_the_file(tmp_path: Path) -> None:
    file = write_recorded(tmp_path / "w.safetensors")
    settings = (
        "model.name=small_cnn",
        "model.args={}",
        f"model.weights={file}",
        "data.crop_ratio=0.8",
        "optim.lr=0.01",
    )
    first = trained(tmp_path / "run", *settings, "train.max_steps=1")
    assert first.config.data.normalize == RECORDED
    assert (first.config.data.crop_ratio, first.config.data.interpolation) == (0.8, "bicubic")
    assert first.loader.preprocessing.mean == (0.1,)
    file.unlink()
    resumed = trained(tmp_path / "run", *settings, "train.max_steps=2")
    assert (resumed.start_step, resumed.config.data) == (1, first.config.data)


def test_a_run_that_began_before_keeps_the_default_normalization(tmp_path: Path) -> None:
    file = write(build("small_cnn", seed=1, classes=2), tmp_path / "w.safetensors")
    settings = ("model.name=small_cnn", "model.args={}", "optim.lr=0.01", f"model.weights={file}")
    trained(tmp_path / "run", *settings, "train.max_steps=1")
    write_recorded(file)  # an older version did not use the record
    resumed = trained(tmp_path / "run", *settings, "train.max_steps=2")
    assert (resumed.start_step, resumed.config.data.normalize) == (1, "auto")


@pytest.mark.parametrize("weights_of_run", ["run", "run/checkpoints/step-00000001", "export/model.safetensors"])
def test_weights_of_ones_own_run_bring_its_normalization(tmp_path: Path, weights_of_run: str) -> None:
    settings = ("model.name=small_cnn", "model.args={}", "optim.lr=0.01", "train.max_steps=1")
    trained(tmp_path / "run", *settings, "data.normalize={mean: [0.1], std: [0.2]}")
    chosen = checkpoints.choose_checkpoint(str(tmp_path / "run"))
    export.export_model(checkpoints.load_training_config(chosen), chosen, tmp_path / "export")
    second = trained(tmp_path / "second", *settings, f"model.weights={tmp_path / weights_of_run}")
    assert second.config.data.normalize == RECORDED


@pytest.mark.parametrize("damage", [b"", b"{}"])
def test_a_damaged_record_is_none(tmp_path: Path, damage: bytes) -> None:
    format.save_checkpoint(tmp_path, step=1, tensors={"model": {"w": torch.ones(1)}}, metadata={}, keep=1)
    plant(tmp_path / "step-00000001", "state.json", damage)
    config = RunConfig(model=ModelConfig(weights=str(tmp_path)))
    assert weights.fit_preprocessing(config, tmp_path) == config.data


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(tmp_path: Path) -> None:
    format.save_checkpoint(tmp_path, step=1, tensors={"model": {"w": torch.ones(1)}}, metadata={}, keep=1)
    (tmp_path / "step-00000001" / "state.json").unlink()
    os.mkfifo(tmp_path / "step-00000001" / "state.json")
    assert weights.fit_preprocessing(RunConfig(), tmp_path) == RunConfig().data
