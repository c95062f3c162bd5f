"""An export is there as a whole or not at all, and read back it is the model that was trained."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from checkpoints import flip
from evaluations import evaluate as evaluate_model
from images import write_image
from inference import export_run
from jobs import trained
from processes import python
from safetensors.torch import load_file

from entrypoint import Failure, file_writer
from train import file_lock, files
from train.data import augment, registry
from train.data.preprocessing import DEFAULT_PREPROCESSING
from train.evaluation.results import EvaluationResult, metric_rows
from train.inference import checkpoints, evaluate, export, model_card
from train.inference.model_code import ModelCode
from train.tasks.classification import Classification

LEARNS = ("data.augment=none", "model.args.norm=batch", "train.ema_decay=0.5", "train.epochs=4")
CLIPS = ("data.frames=3", "model.name=cnn3d", "train.max_steps=2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    trained(folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_folder_gets_four_files_and_nothing_else_is_left(
    run: Path, tmp_path: Path, exists: bool
) -> None:
    folder = tmp_path / "above" / "model"
    if exists:
        folder.mkdir(parents=True)
    export_run(run, folder)
    assert names(folder) == ["README.md", "model.json", "model.py", "model.safetensors"]
    assert names(folder.parent) == ["model"]


def test_the_weights_are_the_checkpoints_in_the_order_in_which_they_are_written_down(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "model")
    written = load_file(tmp_path / "model" / export.WEIGHTS_FILE)
    measured = evaluate.load_weights(checkpoints.choose_checkpoint(str(run))).tensors
    assert written.keys() == measured.keys()
    assert all(torch.equal(tensor, measured[name]) and tensor.is_contiguous() for name, tensor in written.items())


def test_the_description_tells_what_the_network_takes_and_how_it_was_trained(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "model")
    recorded = json.loads((tmp_path / "model" / export.DESCRIPTION_FILE).read_text())
    assert recorded["input"] == {
        "channels": 3,
        "size": [8, 8],
        "numbers": "uint8",
        "normalization": {"subtract": 127.5, "divide": 63.75},
        "made": "files",
        "name": "images",
        "dtype": "float32",
        "layout": "NCHW",
        "shape": ["batch", 3, 8, 8],
        "preprocessing": {
            "mean": [0.5],
            "std": [0.25],
            "crop_ratio": 1.0,
            "interpolation": "bilinear",
            "fit": "crop",
            "decode": "auto",
        },
    }
    assert recorded["output"] == {"name": "logits", "dtype": "float32", "shape": ["batch", 2]}
    assert recorded["files"] == {}
    assert (recorded["name"], recorded["args"], recorded["classes"]) == (
        "small_cnn",
        {"width": 4},
        ["outline-0", "outline-1"],
    )
    assert recorded["config"]["train"]["global_batch_size"] == 16


def a_file(folder: Path) -> None: folder.write_text("mine")  # fmt: skip


def a_dead_link(folder: Path) -> None: folder.symlink_to("gone")  # fmt: skip


def not_empty(folder: Path) -> None: (folder.mkdir(), (folder / "mine").write_text("mine"))  # fmt: skip


@pytest.mark.parametrize("make", [a_file, a_dead_link, not_empty])
def test_nothing_is_overwritten(run: Path, tmp_path: Path, make: object) -> None:
    make(tmp_path / "model")  # type: ignore[operator]
    before = os.stat(tmp_path / "model", follow_symlinks=False).st_mtime_ns
    with pytest.raises(Failure, match="is not empty") as caught:
        export_run(run, tmp_path / "model")
    assert caught.value.code == 73
    assert os.stat(tmp_path / "model", follow_symlinks=False).st_mtime_ns == before


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_disk_that_fills_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, exists: bool
) -> None:
    real, calls = file_writer.open_new_file, list[Path]()

    def create(path: Path) -> int:
        calls.append(path)
        if len(calls) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path)

    monkeypatch.setattr(file_writer, "open_new_file", create)
    folder = tmp_path / "place" / "model"
    (folder if exists else folder.parent).mkdir(parents=True)
    with pytest.raises(Failure) as caught:
        export_run(run, folder)
    assert (caught.value.code, "--output" in caught.value.fix, len(calls)) == (74, True, number)
    assert (names(folder.parent), exists and names(folder)) == (["model"] if exists else [], [] if exists else False)


def test_what_somebody_else_put_there_meanwhile_stays(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = tmp_path / "model", files.write_atomic

    def write(path: Path, data: bytes) -> None:
        real(path, data)
        if path.name == export.DESCRIPTION_FILE:
            not_empty(folder)

    monkeypatch.setattr(files, "write_atomic", write)
    with pytest.raises(Failure, match="is not empty"):
        export_run(run, folder)
    assert (names(tmp_path), names(folder)) == (["model"], ["mine"])


KILLED = """
import os, sys
from entrypoint import file_writer
from train import __main__ as front
real, calls = file_writer.open_new_file, []
def create(path):
    calls.append(path)
    if len(calls) == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
    return real(path)
file_writer.open_new_file = create
front.run_command(["export", sys.argv[1], "--output", sys.argv[2]], os.environ)
"""


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("number", [1, 3])
def test_what_a_killed_export_left_is_removed_by_the_next_one(
    run: Path, tmp_path: Path, number: int, exists: bool
) -> None:
    folder = tmp_path / "above" / "model"
    (folder if exists else folder.parent).mkdir(parents=True)
    assert python("-c", KILLED, str(run), str(folder), str(number)).returncode == -9
    assert names(folder.parent) != ["model"] or names(folder) != []
    export_run(run, folder)
    assert (names(folder.parent), len(names(folder))) == (["model"], 4)


def test_an_export_that_another_process_writes_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    lock = file_lock.acquire_lock(tmp_path / "model" / export.LOCK_NAME)
    assert lock is not None
    with lock.held(), pytest.raises(Failure, match="another process writes") as caught:
        export_run(run, tmp_path / "model")
    assert (caught.value.code, f"process {os.getpid()} on " in str(caught.value.found)) == (73, True)
    assert names(tmp_path / "model") == []


def test_a_complete_export_is_no_leftover(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "model")
    lock = tmp_path / "model" / f"{export.LOCK_NAME}.1"
    ended = asdict(file_lock.this_process_as_holder()) | {"began": "0"}
    lock.write_text(json.dumps(ended))
    with pytest.raises(Failure, match="is not empty"):
        export_run(run, tmp_path / "model")
    assert "model.json" in names(tmp_path / "model")


def test_a_folder_name_as_long_as_the_system_allows_is_exported(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / ("m" * 255))
    assert os.listdir(tmp_path) == ["m" * 255]


def handed_on(folder: Path, *settings: str) -> Path:
    trained(folder / "run", *settings)
    return export_run(folder / "run", folder / "model")


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return handed_on(tmp_path_factory.mktemp("whole"), *LEARNS)


@pytest.fixture
def model(undamaged: Path, tmp_path: Path) -> Path:
    """One that a test may damage."""
    return Path(shutil.copytree(undamaged, tmp_path / "model"))


def test_it_is_right_as_often_as_the_training_measured(undamaged: Path) -> None:
    loaded = export.load_exported(undamaged)
    step = json.loads((undamaged / export.DESCRIPTION_FILE).read_text())["checkpoint"]["step"]
    checkpoint = checkpoints.choose_checkpoint(str(undamaged.parent / "run" / "checkpoints" / f"step-{step:08d}"))
    config, _ = checkpoints.load_config(checkpoint, None, ())
    validation = registry.open_splits(config.data).validation
    images = augment.normalize(validation.read(np.arange(len(validation.labels))))
    right = (loaded.network(images).argmax(1) == validation.labels).float().mean()
    state = json.loads((checkpoint.path / "state.json").read_text())["state"]
    assert float(right) == pytest.approx(EvaluationResult.from_json(state["result"]).values["accuracy"])


@pytest.mark.parametrize("settings", [(), ("train.ema_decay=0.5",), ("data.classes=6",)])
def test_of_a_run_with_flips_the_card_has_the_score_of_the_network_in_the_folder(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Whoever asks the files asks for one image, and gets no mean with its mirror image."""
    model = handed_on(tmp_path, *settings, "data.samples=400", "data.augment=none", "eval.flip=true")
    loaded = export.load_exported(model)
    step = json.loads((model / export.DESCRIPTION_FILE).read_text())["checkpoint"]["step"]
    checkpoint = checkpoints.choose_checkpoint(str(tmp_path / "run" / "checkpoints" / f"step-{step:08d}"))
    validation = registry.open_splits(checkpoints.load_config(checkpoint, None, ())[0].data).validation
    outputs = loaded.network(augment.normalize(validation.read(np.arange(len(validation.labels)))))
    result, _ = evaluate_model(Classification(classes=tuple(loaded.classes)), outputs, validation.labels)
    card = (model / export.CARD_FILE).read_text()
    for label, value in metric_rows(result, loaded.classes).items():
        assert f"| {label} | {value.replace('|', '')} |" in card or label == "weak classes"
    state = json.loads((checkpoint.path / "state.json").read_text())["state"]
    with_flips = EvaluationResult.from_json(state["result"])
    assert with_flips != result
    (flipped, *_) = metric_rows(with_flips, loaded.classes).values()
    assert f"| with eval.flip | {flipped}: the mean of the outputs for each image and its mirror image |" in card


def test_a_run_that_measured_only_with_flips_has_no_score_of_the_files(tmp_path: Path) -> None:
    """Such as one of a version that did not measure the images alone."""
    trained(tmp_path / "run", "eval.flip=true")
    chosen = checkpoints.choose_checkpoint(str(tmp_path / "run"))
    about = model_card.collect_model_facts(checkpoints.load_config(chosen, None, ())[0], chosen)
    assert about.result is not None
    older = {**about.state, "state": {**about.state["state"], "unflipped": None}}
    text = model_card.render_card(replace(about, state=older), "out", ModelCode(imports=(), lines=()))
    assert "train eval RUN eval.flip=false" in text
    assert "validation images, loss" not in text


@pytest.mark.parametrize(
    ("setting", "key"), [("eval.image_size=16", "eval.image_size"), ("data.crop_ratio=0.8", "data.crop_ratio")]
)
def test_a_score_of_another_input_is_not_that_of_the_export(tmp_path: Path, setting: str, key: str) -> None:
    trained(tmp_path / "run", "model.name=wide_resnet", "model.args={width: 1}")
    export_run(tmp_path / "run", tmp_path / "model", setting)
    card = (tmp_path / "model" / export.CARD_FILE).read_text().replace("\\", "")
    assert f"Not measured with this input: the run measured another ({key}: " in card
    assert "validation images, loss" not in card


def test_thresholds_of_labels_are_those_of_the_network_in_the_folder(tmp_path: Path) -> None:
    state = {"step": 4, "evaluated": 4, "result": {"thresholds": [0.3]}, "unflipped": {"thresholds": [0.4]}}
    assert checkpoints.recorded_thresholds({"state": state}, 1, flip=True) == (0.3,)
    assert checkpoints.recorded_thresholds({"state": state}, 1, flip=False) == (0.4,)
    assert checkpoints.recorded_thresholds({"state": {**state, "unflipped": None}}, 1, flip=False) == (0.3,)


def test_the_precision_in_which_a_score_was_measured_is_beside_it(tmp_path: Path) -> None:
    model = handed_on(tmp_path, "train.precision=bf16", "train.max_steps=2")
    assert "| measured in | bf16; the files compute in fp32 |" in (model / export.CARD_FILE).read_text()


def test_a_loaded_network_only_answers(undamaged: Path) -> None:
    network = export.load_exported(undamaged).network
    assert not any(module.training for module in network.modules())
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_image_files_for_a_network_that_learned_from_arrays_are_warned_of(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(40) % 2)
    settings = ("data.name=npz", f"data.root={tmp_path / 'a.npz'}", "train.max_steps=2")
    loaded = export.load_exported(handed_on(tmp_path, *settings))
    with pytest.warns(UserWarning, match="were arrays"):
        assert loaded.read([write_image(tmp_path / "a.png")]).shape == (1, 3, 8, 8)


def test_loading_leaves_the_callers_random_numbers_alone(undamaged: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    export.load_exported(undamaged)
    assert torch.equal(torch.get_rng_state(), before)


# A network with numbers that it draws and keeps out of its state dict, as random Fourier features are.
DRAWS = """
import torch
from torch import nn

class Drawn(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.register_buffer("drawn", torch.randn(192, width), persistent=False)
        self.last = nn.Linear(width, classes)
    def forward(self, x):
        return self.last((x.flatten(1) @ self.drawn).cos())
"""


def test_what_a_network_drew_from_the_runs_seed_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drawing.py").write_text(DRAWS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    trainer = trained(tmp_path / "run", "model.name=drawing:Drawn", "run.seed=7", "train.max_steps=1")
    export_run(tmp_path / "run", tmp_path / "model", "model.name=drawing:Drawn")
    images, network = torch.randn(2, 3, 8, 8), trainer.state.network.eval()
    loaded = export.load_exported(tmp_path / "model", factory=sys.modules["drawing"].Drawn)
    assert torch.equal(loaded.network(images), network(images))


DOUBLES = """
from torch import nn


class Double(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.last = nn.Linear(192, classes).double()
    def forward(self, x):
        return self.last(x.flatten(1).double())
"""


def test_the_type_of_the_output_is_the_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doubling.py").write_text(DOUBLES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "run", "model.name=doubling:Double", "train.max_steps=1")
    export_run(tmp_path / "run", tmp_path / "model", "model.name=doubling:Double", formats=["onnx"])
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    recorded = json.loads((tmp_path / "model" / export.DESCRIPTION_FILE).read_text())["output"]
    assert (session.get_outputs()[0].type, recorded["dtype"]) == ("tensor(double)", "float64")
    assert json.loads(session.get_modelmeta().custom_metadata_map["output"])["dtype"] == "float64"


def test_a_network_for_clips_refuses_image_files(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="does not take image files"):
        export.load_exported(handed_on(tmp_path, *CLIPS)).read([])


def test_an_export_of_a_version_without_preprocessing_gets_the_default(model: Path) -> None:
    file = model / export.DESCRIPTION_FILE
    description = json.loads(file.read_text())
    del description["input"]["preprocessing"]
    file.write_text(json.dumps(description))
    assert export.load_exported(model).preprocessing == DEFAULT_PREPROCESSING


def described(model: Path, **changes: object) -> None:
    recorded = json.loads((model / export.DESCRIPTION_FILE).read_text())
    (model / export.DESCRIPTION_FILE).write_text(json.dumps(recorded | changes))


BAD: dict[str, tuple[Callable[[Path], object], int]] = {
    "no folder": (shutil.rmtree, 66),
    "no description": (lambda model: (model / export.DESCRIPTION_FILE).unlink(), 66),
    "no JSON": (lambda model: (model / export.DESCRIPTION_FILE).write_text("{"), 65),
    "a list": (lambda model: (model / export.DESCRIPTION_FILE).write_text("[]"), 65),
    "another format": (lambda model: described(model, format=2), 65),
    "a part missing": (lambda model: (model / export.DESCRIPTION_FILE).write_text('{"format": 1}'), 65),
    "a part of another kind": (lambda model: described(model, input=None), 65),
    "a seed of another kind": (lambda model: described(model, config={"run": {"seed": "seven"}}), 65),
    "no weights": (lambda model: (model / export.WEIGHTS_FILE).unlink(), 65),
    "a flipped bit": (lambda model: flip(model / export.WEIGHTS_FILE), 65),
    "longer": (
        lambda model: (model / export.WEIGHTS_FILE).write_bytes((model / export.WEIGHTS_FILE).read_bytes() + b"0"),
        65,
    ),
    "another network's": (lambda model: described(model, args={"width": 5}), 65),
    "a network nobody knows": (lambda model: described(model, args={"height": 5}), 64),
    "torchvision's that is no classifier, and would download": (
        lambda model: described(model, name="fasterrcnn_resnet50_fpn", args={"weights_backbone": "DEFAULT"}),
        64,
    ),
    "a name that is none": (lambda model: described(model, name="torch.hub.load"), 64),
}


@pytest.mark.parametrize(("spoil", "code"), BAD.values(), ids=BAD)
def test_what_is_no_whole_export_is_refused(model: Path, spoil: Callable[[Path], object], code: int) -> None:
    spoil(model)
    with pytest.raises(Failure) as caught:
        export.load_exported(model)
    assert caught.value.code == code
