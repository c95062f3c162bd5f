"""`train check` builds the network as a start does: it refuses the same, in the same words."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch
from images import write_classes, write_image
from jobs import TINY, built, refused
from label_tables import rows, write_table
from processes import python

from entrypoint import ExitCode, Failure, LaunchOptions, make_plan
from train import __main__ as front
from train.cli import check, launch
from train.config import load
from train.config.load import keep_last_overrides
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.logging.trackers import load_tracker_classes
from train.models import registry
from train.tasks.classification import Classification

OWN = """
import torch
from torch import nn

def one_layer(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes))

def one_score_too_many(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes + 1))

def of_another_size(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(999, classes))

def ends_in_a_softmax(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes), nn.Softmax(dim=1))

def not_finite(classes):
    net = one_layer(classes)
    nn.init.constant_(net[1].bias, float("nan"))
    return net

class Slow(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("no step today")

class Counting(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.net = one_layer(classes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, images):
        self.calls += 1
        return self.net(images)

def synchronized(classes):
    return nn.Sequential(nn.SyncBatchNorm(3), one_layer(classes))

class Diary:
    pass

class Pictures(torch.utils.data.Dataset):
    def __init__(self, count, classes=2):
        self.targets = [number % classes for number in range(count)]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, number):
        return torch.full((3, 8, 8), float(number)), self.targets[number]

def pictures(data):
    return Pictures(64), Pictures(16)

def unlike_pictures(data):
    return Pictures(64), Pictures(16, classes=5)

def no_pictures(data):
    raise FileNotFoundError("no pictures today")

def pooled(classes, last=1):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(last), nn.BatchNorm2d(4), nn.Flatten(),
                         nn.Linear(4 * last * last, classes))

def squeezed(classes):
    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, classes)

        def forward(self, images):
            return self.head(nn.functional.adaptive_avg_pool2d(images, 1).squeeze())

    return Squeezed()

class WithExtraState(Counting):
    def forward(self, images):
        return self.net(images)

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        pass
"""


def described(*settings: str) -> str:
    config = load.load_config(None, keep_last_overrides([*TINY, *settings]))
    return check.describe_plan(config, None, make_plan({}, LaunchOptions(device="cpu")), None)


@pytest.fixture(scope="module")
def weights_of_a_resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights for seven classes and small images."""
    file = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    net = registry.build_model(ModelConfig(name="resnet18"), classes=7, shape=Shape(channels=3, size=(8, 8)), seed=0)
    torch.save(net.state_dict(), file)
    return file


@pytest.fixture(autouse=True)
def _a_folder_with_networks_and_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights_of_a_resnet: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "network_to_check.py").write_text(OWN)
    (tmp_path / "resnet18.pth").symlink_to(weights_of_a_resnet)
    (tmp_path / "cut.pth").write_bytes(weights_of_a_resnet.read_bytes()[:1000])
    torch.save({"other": torch.zeros(2)}, tmp_path / "other.pth")


RESNET = ("model.name=resnet18", "model.args={}")
OTHER = "model.args={}"
REFUSED: dict[str, tuple[str, ...]] = {
    "an argument that torchvision does not know": ("model.name=resnet18", "model.args={depht: 3}"),
    "a value that torchvision does not take": ("model.name=resnet18", "model.args={groups: 3}"),
    "an argument that timm does not know": ("model.name=timm/test_resnet", "model.args={depht: 3}"),
    "a value that our network does not take": ("model.args.width=-1",),
    "images that are too small": ("model.name=vgg11", OTHER),
    "images of a size that timm's model does not take": ("model.name=timm/test_vit", OTHER, "data.image_size=33"),
    "weights of another network": ("model.args={}", "model.weights=resnet18.pth"),
    "weights that hold other tensors": (*RESNET, "model.weights=other.pth"),
    "weights that are cut off": (*RESNET, "model.weights=cut.pth"),
    "weights with another stem": (*RESNET, "model.args.small_stem=false", "model.weights=resnet18.pth"),
    "an argument's value that torch's optimizer does not take": ("optim.name=adamw", "optim.args.betas=[2, 3]"),
    "an own optimizer that fails": ("optim.name=network_to_check:Slow",),
    "an own loss that fails": ("optim.loss=network_to_check:Slow",),
    "an own loss of another shape": ("optim.loss=torch:eq",),
    "an own loss that is not there": ("optim.loss=network_to_check:focal",),
    "an own network that is not there": ("model.name=network_to_check:no", OTHER),
    "an own network with a wrong output": ("model.name=network_to_check:one_score_too_many", OTHER),
    "an own network of another size": ("model.name=network_to_check:of_another_size", OTHER),
    "an own network that is not finite": ("model.name=network_to_check:not_finite", OTHER),
    "an own network that would be frozen": ("model.name=network_to_check:one_layer", OTHER, "model.freeze=backbone"),
    "an own network without blocks": (
        "model.name=network_to_check:one_layer", OTHER, "train.activation_checkpointing=true"
    ),
    "an own network that drops the axis of a single sample": ("model.name=network_to_check:squeezed", OTHER),
    "an own network with more state than tensors": ("model.name=network_to_check:WithExtraState", OTHER),
    "an own network with BatchNorm over one value": (
        "model.name=network_to_check:pooled", OTHER, "train.micro_batch_size=1"
    ),
    "BatchNorm over one value": ("model.name=mobilenet_v3_small", OTHER, "train.micro_batch_size=1"),
    "BatchNorm over one value, in a network of this project's": (
        "model.name=wide_resnet", OTHER, "train.micro_batch_size=1", "data.image_size=4"
    ),
    "BatchNorm over one value at the beginning, when images are small": (
        *RESNET, "train.micro_batch_size=1", "data.image_size=16", "data.progressive_size={start: 8, epochs: 1}"
    ),
    "a global batch of one sample": (*RESNET, "train.micro_batch_size=auto", "train.global_batch_size=1"),
    "own data that is not there": ("data.name=network_to_check:pictrues",),
    "own data in a module that is not there": ("data.name=network_to_chekc:pictures",),
    "own data that fails": ("data.name=network_to_check:no_pictures",),
    "own data whose splits do not fit": ("data.name=network_to_check:unlike_pictures",),
    "own data of fewer samples than a batch": ("data.name=network_to_check:pictures", "train.global_batch_size=80"),
    "an own network that counts, which has to give the same bits": (
        "model.name=network_to_check:Counting", OTHER, "train.reproducible=bitwise"
    ),
    "an own network that adds up over ranks, which has to give the same bits": (
        "model.name=network_to_check:synchronized", OTHER, "train.reproducible=bitwise"
    ),
}  # fmt: skip


@pytest.mark.parametrize("settings", REFUSED.values(), ids=REFUSED)
def test_check_refuses_what_a_start_refuses(settings: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        described(*settings)
    start = refused(tmp_path / "run", *settings)
    assert (str(caught.value), caught.value.code) == (str(start), start.code)


def test_a_micro_batch_of_one_is_refused_with_the_one_to_write(tmp_path: Path) -> None:
    def fix(*settings: str) -> str:
        return refused(tmp_path / "run", *RESNET, *settings).fix.partition(",")[0]

    assert fix("train.micro_batch_size=1") == "set train.micro_batch_size=2"
    assert fix("train.micro_batch_size=1", "train.global_batch_size=15") == "set train.micro_batch_size=3"
    assert fix("train.micro_batch_size=auto", "train.global_batch_size=1") == "set train.global_batch_size=2"


@pytest.mark.parametrize(
    "settings",
    [(*RESNET, "data.image_size=16"), (*RESNET, "model.freeze=backbone"), ("model.name=timm/test_vit", OTHER), ()],
    ids=["larger features", "frozen BatchNorm", "no BatchNorm", "the default network"],
)
def test_a_micro_batch_of_one_is_trained_where_it_can_be(settings: tuple[str, ...], tmp_path: Path) -> None:
    if "model.name=timm/test_vit" in settings:
        settings = (*settings, "data.image_size=32")
    assert "parameters are trained" in described(*settings, "train.micro_batch_size=1")
    with built(tmp_path / "run", *settings, "train.micro_batch_size=1", "train.max_steps=1") as trainer:
        modes = [module.training for module in trainer.state.network.modules()]
        trainer.fit()
    assert [module.training for module in trainer.state.network.modules()] == modes


def test_check_opens_own_data(tmp_path: Path) -> None:
    shown = described("data.name=network_to_check:pictures")
    assert (
        "\ndata           network_to_check:pictures, samples of 8 x 8 x 3, 2 classes (0, 1): "
        "64 for training, 16 for validation\n" in shown
    )
    assert "\nsteps          4 per epoch, 8 in all" in shown


TWELVE_IN_A_LIST = "optim.class_weights=[1,2,3,4,5,6,7,8,9,10,11,12]"
TWELVE_BY_NAME = f"optim.class_weights={{{', '.join(f'{number}: {number}' for number in range(1, 13))}}}"


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (TWELVE_IN_A_LIST, "1: 1, 10: 2, 11: 3, 12: 4, 2: 5, 3: 6, 4: 7, 5: 8, 6: 9, 7: 10, 8: 11, 9: 12"),
        (TWELVE_BY_NAME, "1: 1, 10: 10, 11: 11, 12: 12, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9"),
    ],
    ids=["list", "names"],
)
def test_check_and_start_show_each_class_beside_its_weight(weights: str, text: str, tmp_path: Path) -> None:
    for image in range(48):
        write_image(tmp_path / f"twelve/{image // 4 + 1}/{image % 4}.png", image)
    settings = ("data.name=folder", f"data.root={tmp_path}/twelve", "data.classes=12", "data.val_fraction=0", weights)
    shown = described(*settings)
    assert f"class weights  {text}\n" in shown
    assert "note: the classes are sorted as text: 1, 10, 11, 12, 2 and 7 more." in shown
    with built(tmp_path / "run", *settings) as trainer:
        assert f"class weights  {text}" in trainer.class_table
        assert any(note.startswith("the classes are sorted as text") for note in trainer.notes)
        numbers = [float(pair.partition(": ")[2]) for pair in text.split(", ")]
        assert isinstance(trainer.task, Classification)
        assert trainer.task.class_weights is not None
        assert trainer.task.class_weights.tolist() == pytest.approx([number / 6.5 for number in numbers])


def test_weights_by_name_of_data_that_is_not_fetched_yet_are_shown_by_their_names(tmp_path: Path) -> None:
    weights = "{truck: 2, " + ", ".join(f"class{number}: 1" for number in range(9)) + "}"
    settings = ("data.name=cifar10", f"data.root={tmp_path}/none", "data.download=true")
    other = ("data.classes=10", "data.image_size=32", f"optim.class_weights={weights}")
    assert "class weights  truck: 2, class0: 1, class1: 1" in described(*settings, *other)


def test_check_says_what_is_loaded_from_the_weights(tmp_path: Path) -> None:
    settings = (*RESNET, "model.weights=resnet18.pth")
    shown = described(*settings)
    with built(tmp_path / "run", *settings) as trainer:
        loaded, new_head = (note for note in trainer.notes if "tensors are from" in note or "newly" in note)
    assert f"\nweights        {loaded}\n" in shown
    assert f"\nnote: {new_head}" in shown


def test_weights_that_a_resumed_run_does_not_read_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "runs/quickstart/checkpoints/step-00000004").mkdir(parents=True)
    settings = (*RESNET, "model.weights=other.pth")
    assert "\nweights " not in described(*settings)
    with pytest.raises(Failure, match="do not fit"):
        described(*settings, "checkpoint.resume=never")


def test_check_says_how_many_parameters_are_trained() -> None:
    assert "resnet18: 11,169,858 parameters are trained\n" in described(*RESNET)
    assert "resnet18: 1,026 parameters are trained\n" in described(*RESNET, "model.freeze=backbone")


def test_a_softmax_at_the_end_is_noted() -> None:
    assert "\nnote: the network of network_to_check:ends_in_a_softmax ends in a softmax" in described(
        "model.name=network_to_check:ends_in_a_softmax", OTHER
    )


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "vit_b_32", "timm/test_vit", "timm/test_convnext"])
@pytest.mark.parametrize("size", [8, 32, 64])
def test_the_meta_device_knows_which_images_a_network_takes(name: str, size: int) -> None:
    def takes(device: str) -> bool:
        try:
            with torch.device(device):
                shape = Shape(channels=3, size=(size, size))
                registry.build_model(ModelConfig(name=name), classes=2, shape=shape, seed=0)
        except Failure:
            return False
        return True

    assert takes("meta") == takes("cpu")


def test_the_quickstart_is_checked_without_torch() -> None:
    program = "import sys; from train import __main__ as front; front.run_command(['check', '--device', 'cpu'], {})"
    done = python("-c", f"{program}; print([name for name in ('torch', 'timm', 'numpy') if name in sys.modules])")
    assert done.stdout.endswith("\n[]\n"), done


# What a config may ask of its data, and data that does not have it.
PHOTOS = ("data.name=folder", "data.root=photos")
SEVERAL_LABELS = ("data.name=table", "data.root=labels.csv", "data.task=multi_label")
NUMBERS = ("data.name=table", "data.root=numbers.csv", "data.task=regression")
ARRAYS = ("data.name=npz", "data.root=gray.npz")
DATA: dict[str, tuple[str, ...]] = {
    "synthetic": (), "photos": PHOTOS, "several labels": SEVERAL_LABELS, "numbers": NUMBERS, "arrays": ARRAYS
}  # fmt: skip
ODD = "train.micro_batch_size=1"
ASKED: dict[str, tuple[str, ...]] = {
    "larger images in evaluation": ("eval.image_size=16",),
    "images of another form in evaluation": ("eval.image_size=[8,16]",),
    "images that grow": ("data.image_size=16", "data.progressive_size={start: 8, epochs: 1}"),
    "images that shrink": ("data.progressive_size={start: 16, epochs: 1}",),
    "mixup of single images": ("data.augment=[mixup]", ODD),
    "cutmix of pairs": ("data.augment=[cutmix]",),
    "random crops in memory": ("data.augment=[random_resized_crop]", "data.loader=memory"),
    "random crops in a cache": ("data.augment=[random_resized_crop]", "data.cache=cache"),
    "colours": ("data.augment=[color_jitter]",),
    "a cache among the images": ("data.cache=photos/cache",),
    "three weights": ("optim.class_weights=[1,2,3]",),
    "two weights": ("optim.class_weights=[1,2]",),
    "weights by other names": ("optim.class_weights={a: 1, c: 2}",),
    "balanced weights": ("optim.class_weights=balanced",),
    "balanced sampling": ("data.sampling=balanced",),
    "a normalization of two channels": ("data.normalize={mean: [0.5, 0.5], std: [0.2, 0.2]}",),
    "a normalization of three channels": ("data.normalize={mean: [0, 0, 0], std: [1, 1, 1]}",),
    "mirror images in evaluation": ("eval.flip=true",),
    "a metric of many classes": ("eval.metric=top5_accuracy",),
    "an end that no evaluation tells": ("eval.early_stop=2", "data.val_fraction=0"),
    "a GPU that decodes": ("data.decode=gpu", "data.augment=[random_resized_crop]"),
    "a tracker that is none": ("log.trackers=[network_to_check:Diary]",),
}


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_classes(folder / "photos", cat=40, dog=40)
    write_table(folder, rows(["cat", "cat;dog"] * 40))
    write_table(folder, rows(range(80)), name="numbers.csv")
    np.savez(folder / "gray.npz", images=np.zeros((80, 8, 8, 1), np.uint8), labels=np.arange(80) % 2)
    return folder


def verdict(action: Callable[[], object]) -> tuple[str, int] | None:
    """The words and the code of a refusal; None if there is none."""
    try:
        action()
    except Failure as failure:
        return str(failure), int(failure.code)
    return None


def start(folder: Path, *settings: str) -> None:
    """Begin a training as `train` does, and end it before its first step."""
    config = load.load_config(None, keep_last_overrides([*TINY, *settings]))
    launch.refuse_invalid_launch(config, make_plan({}, LaunchOptions(device="cpu")), {})
    with built(folder, *settings):
        load_tracker_classes(config.log.trackers)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_check_refuses_of_any_data_what_a_start_refuses(
    data: tuple[str, ...], asked: tuple[str, ...], tmp_path: Path, data_sets: Path
) -> None:
    shutil.copytree(data_sets, tmp_path, dirs_exist_ok=True)
    settings = (*data, *asked)
    assert verdict(lambda: described(*settings)) == verdict(lambda: start(tmp_path / "run", *settings))


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        ((), "larger images in evaluation"), ((), "images that shrink"), ((), "mixup of single images"),
        (PHOTOS, "random crops in memory"), (PHOTOS, "random crops in a cache"), (PHOTOS, "a cache among the images"),
        ((), "three weights"), ((), "a normalization of two channels"), (SEVERAL_LABELS, "balanced sampling"),
        (NUMBERS, "cutmix of pairs"), (ARRAYS, "a normalization of three channels"), (PHOTOS, "a GPU that decodes"),
        ((), "an end that no evaluation tells"), ((), "a tracker that is none"),
    ],
)  # fmt: skip
def test_what_a_config_asks_in_vain_is_a_wrong_config(data: tuple[str, ...], asked: str, data_sets: Path) -> None:
    shutil.copytree(data_sets, ".", dirs_exist_ok=True)
    refusal = verdict(lambda: described(*data, *ASKED[asked]))
    assert refusal is not None
    assert refusal[1] == ExitCode.USAGE, refusal


@pytest.mark.parametrize("asked", ["mixup of single images", "three weights", "a normalization of two channels"])
def test_check_knows_published_data_before_it_is_fetched(asked: str) -> None:
    data = ("data.name=cifar10", "data.download=true")
    refusal = verdict(lambda: described(*data, *ASKED[asked]))
    assert refusal is not None
    assert refusal[1] == ExitCode.USAGE, refusal


# Settings that fit some data, networks and each other, and others not.
FREE: dict[str, tuple[str, ...]] = {
    "another network": RESNET,
    "a network with small features": ("model.name=mobilenet_v3_small", OTHER),
    "an own network": ("model.name=network_to_check:pooled", OTHER),
    "an own network of a size": ("model.name=network_to_check:one_layer", OTHER),
    "an own network that counts": ("model.name=network_to_check:Counting", OTHER),
    "smaller images": ("data.image_size=4",),
    "frozen layers": ("model.freeze=backbone",),
    "layers that are frozen at first": ("model.freeze=1",),
    "weights": ("model.weights=resnet18.pth",),
    "an average": ("train.ema_decay=0.9",),
    "activation checkpointing": ("train.activation_checkpointing=true",),
    "the same bits": ("train.reproducible=bitwise", "train.micro_batch_size=4"),
    "an uneven micro batch": ("train.micro_batch_size=3",),
    "one process": ("train.parallel=none",),
    "a larger batch than data": ("train.global_batch_size=96",),
    "another optimizer": ("optim.name=adamw",),
    "another loss": ("optim.loss=bce",),
    "layer decay": ("optim.layer_decay=0.7",),
    "no validation": ("data.val_fraction=0",),
    "a fold": ("data.fold=2/5",),
    "a test split": ("data.test_fraction=0.2",),
    "gray": ("data.color=gray",),
    "a border": ("data.fit=pad", "data.crop_ratio=0.8"),
    "repeats": ("data.repeats=3",),
    "fewer readers": ("data.readers=3",),
    "another task": ("data.task=multi_label",),
    "another count of classes": ("data.classes=3",),
    "an early end": ("eval.early_stop=2",),
    "a target": ("eval.target=90",),
    "own data": ("data.name=network_to_check:pictures", "data.root=."),
    "own data that does not fit": ("data.name=network_to_check:unlike_pictures", "data.root=."),
}
# Without what makes a folder among the images, which the next start would find.
SHARED: Final = {name: settings for name, settings in ASKED.items() if name != "a cache among the images"}
POOL: dict[str, tuple[str, ...]] = FREE | SHARED | {name: REFUSED[name] for name in list(REFUSED)[::3]}


def drawn_pairs(seed: int, count: int) -> list[tuple[str, str, str]]:
    """(data, one setting, another one), the same for the same seed."""
    generator = random.Random(seed)
    return [(generator.choice([*DATA]), *generator.sample([*POOL], 2)) for _ in range(count)]  # type: ignore[misc]


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 24))])
def test_check_and_start_decide_alike_on_any_two_settings(seed: int, tmp_path: Path, data_sets: Path) -> None:
    shutil.copytree(data_sets, tmp_path, dirs_exist_ok=True)
    decisions = {}
    for number, (data, *names) in enumerate(drawn_pairs(seed, 8)):
        settings = (*DATA[data], *POOL[names[0]], *POOL[names[1]])
        run = (f"run.output_dir={tmp_path}", f"run.name=run-{number}")
        checked = verdict(lambda words=(*settings, *run): described(*words))
        started = verdict(lambda folder=tmp_path / f"run-{number}", words=settings: start(folder, *words))
        decisions[data, *names] = (checked and checked[1], started and started[1])
    assert {names: codes for names, codes in decisions.items() if codes[0] != codes[1]} == {}


def test_a_size_that_the_network_does_not_take_is_refused() -> None:
    write_classes(Path("photos"), cat=40, dog=40)
    settings = (*PHOTOS, "eval.image_size=16")
    assert verdict(lambda: described(*settings)) == verdict(lambda: start(Path("run"), *settings))
    assert verdict(lambda: described(*settings, *RESNET)) is None


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("run.output_dir=/proc/x", 74), ("run.output_dir=/sys/x", 74), ("run.output_dir=taken", 73),
        ("run.output_dir=taken/x", 73), ("data.cache=/proc/x", 74), ("data.cache=taken", 73),
    ],
)  # fmt: skip
def test_check_refuses_a_folder_that_cannot_be_made(
    setting: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").touch()
    write_classes(Path("photos"), cat=40, dog=40)
    words = [*TINY, *PHOTOS, setting]
    assert front.run_command(["check", "--device", "cpu", *keep_last_overrides(words)], {}) == code
    assert capsys.readouterr().err.startswith(f"ERROR[{code}] ")
