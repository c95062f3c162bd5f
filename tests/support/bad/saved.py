"""Checkpoints and files of weights that are damaged, foreign, of another run, or made to harm."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from bad.case import Case, through_rank, through_train
from bad.datasets import Hostile
from checkpoints import DAMAGES, plant, readdress, reseal
from images import write_classes
from safetensors.torch import load_file, save, save_file

RUN = ("runs", "runs/*")
SCRATCH = ("scratch", "scratch/*")
resumed = partial(Case, door=through_rank, line=("run.output_dir=runs",), writes=RUN, code=65)
measured = partial(Case, door=through_train, code=65)
LAST, FIRST = Path("runs/run/checkpoints/step-00000008"), Path("runs/run/checkpoints/step-00000004")
Make = Callable[[Path], object]


@cache
def template() -> Path:
    """A finished run of eight steps with two checkpoints, trained once."""
    from jobs import trained

    folder = Path(tempfile.mkdtemp(prefix="bad-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    trained(folder / "run", "run.name=run", "checkpoint.every_steps=4")
    return folder


def run(folder: Path) -> None:
    shutil.copytree(template() / "run", folder / "runs" / "run")


def with_run(*changes: Callable[[], object]) -> Make:
    """The run, changed; the working directory is the fresh folder."""

    def make(folder: Path) -> None:
        run(folder)
        for change in changes:
            change()

    return make


def each(damage: Callable[[Path], object]) -> Callable[[], object]:
    return lambda: [damage(path) for path in (FIRST, LAST)]


def state(change: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
    """Another state.json in the newest checkpoint, with the right hashes."""

    def apply() -> None:
        contents = json.loads((LAST / "state.json").read_text())
        plant(LAST, "state.json", json.dumps(change(contents) or contents).encode())

    return apply


def bytes_of_state(data: bytes) -> Callable[[], object]:
    return lambda: plant(LAST, "state.json", data)


def put(contents: dict[str, Any], *path: str, value: Any) -> None:
    for key in path[:-1]:
        contents = contents[key]
    contents[path[-1]] = value


def drop(contents: dict[str, Any], *path: str) -> None:
    for key in path[:-1]:
        contents = contents[key]
    del contents[path[-1]]


def model(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[], object]:
    def apply() -> None:
        tensors = load_file(LAST / "model.safetensors")
        change(tensors)
        plant(LAST, "model.safetensors", save(tensors))

    return apply


def linked(path: Path) -> None:
    """The same content, through a symbolic link."""
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


# id -> (row, what is done to the run, words of the message, words of the fix). Code 65, or 77 where it says so.
Row = tuple[str, Callable[[], object], int, tuple[str, ...], str]
OVER = "checkpoint.resume=never"
ROWS: dict[str, Row] = {
    **{
        f"all-{name.replace(' ', '-')}": (
            row,
            each(DAMAGES[name]),
            65,
            ("no checkpoint in runs/run/checkpoints is whole", "step-00000008"),
            OVER,
        )
        for row, name in {"20": "cut short", "21": "a flipped bit", "22": "a file missing"}.items()
    },
    "newer-format": ("25", lambda: reseal(LAST, format=99), 65, ("written by a newer version", "format 99"), OVER),
    "newer-torch": ("25", lambda: reseal(LAST, torch="99.1"), 65, ("written by a newer version", "torch 99.1"), OVER),
    "path-up": ("52", lambda: readdress(LAST, "state.json", "../../x"), 77, ("'../../x'", "plain file name"), "delete"),
    "path-absolute": ("52", lambda: readdress(LAST, "state.json", "/etc/passwd"), 77, ("'/etc/passwd'",), "delete"),
    "path-to-itself": (
        "52",
        lambda: readdress(LAST, "state.json", "manifest.json"),
        77,
        ("'manifest.json'",),
        "delete",
    ),
    "path-hidden": ("52", lambda: readdress(LAST, "state.json", ".bashrc"), 77, ("'.bashrc'",), "delete"),
    "linked-file": (
        "52",
        lambda: linked(LAST / "state.json"),
        77,
        ("state.json", "symbolic link"),
        "delete this checkpoint",
    ),
    "linked-checkpoint": ("52", lambda: linked(LAST), 77, ("step-00000008", "symbolic link"), "delete this checkpoint"),
    "linked-folder": ("52", lambda: linked(LAST.parent), 77, ("checkpoints is a symbolic link",), "run.output_dir"),
    "pipe-for-a-file": ("52", lambda: piped(LAST / "state.json"), 77, ("state.json", "not a regular file"), "delete"),
    "state-no-json": ("25", bytes_of_state(b"{"), 65, ("step-00000008 is damaged",), OVER),
    "state-a-pickle": ("51", bytes_of_state(pickle.dumps(Hostile())), 65, ("step-00000008 is damaged",), OVER),
    "state-deep": ("49", bytes_of_state(b"[" * 100_000), 65, ("step-00000008 is damaged",), OVER),
    "state-a-list": ("25", bytes_of_state(b"[]"), 65, ("step-00000008",), OVER),
    "state-empty": ("25", bytes_of_state(b"{}"), 65, ("step-00000008", "config"), OVER),
    "state-config-a-list": ("25", state(lambda s: put(s, "config", value=[1])), 65, ("step-00000008",), OVER),
    "state-section-a-text": ("25", state(lambda s: put(s, "config", "optim", value="x")), 65, ("step-00000008",), OVER),
    "state-without-state": ("25", state(lambda s: drop(s, "state")), 65, ("step-00000008",), OVER),
    "state-step-a-text": ("25", state(lambda s: put(s, "state", "step", value="x")), 65, ("does not fit",), OVER),
    "state-seconds-huge": (
        "25",
        state(lambda s: put(s, "state", "seconds", value=10**400)),
        65,
        ("seconds is 1000",),
        OVER,
    ),
    "state-optimizer-a-list": (
        "25",
        state(lambda s: put(s, "state", "optimizer", value=[])),
        65,
        ("does not fit",),
        OVER,
    ),
    "state-without-world": ("25", state(lambda s: drop(s, "world_size")), 65, ("step-00000008",), OVER),
    "state-data-a-number": ("25", state(lambda s: put(s, "data", value=5)), 65, ("step-00000008",), OVER),
    "other-samples": (
        "23",
        state(lambda s: put(s, "data", "training", value=5)),
        65,
        ("the data is not what this run began with", "training: 64", "training: 5"),
        "checkpoint.resume=never; or start a new run from its weights: model.weights=runs/run run.name=",
    ),
    "other-classes": (
        "23",
        state(lambda s: put(s, "data", "classes", value=["a"])),
        65,
        ("classes: outline-0, outline-1", "classes: a"),
        "the same files",
    ),
    "other-files": (
        "23",
        state(lambda s: put(s, "data", "digests", "held_out", value="x")),
        65,
        ("the data is not what this run began with", "validation: 16 as before, but others"),
        "would draw a new split",
    ),
    "digests-a-number": ("25", state(lambda s: put(s, "data", "digests", value=5)), 65, ("step-00000008",), OVER),
    "past-the-end": (
        "23",
        state(lambda s: s["config"]["train"].update(epochs=9) or s["state"].update(step=12)),
        65,
        ("this run is past the end that is asked for", "step 12, epoch 3", "at most 8 steps (2 epochs)", "to do 36"),
        "add train.epochs=9",
    ),
    "model-a-pickle": ("51", lambda: plant(LAST, "model.safetensors", pickle.dumps(Hostile())), 65, ("damaged",), OVER),
    "model-other-shape": (
        "23",
        model(lambda t: t.update({name: tensor[:1].clone() for name, tensor in t.items() if tensor.dim() == 4})),
        65,
        ("does not fit this model",),
        OVER,
    ),
    "model-fewer-tensors": ("23", model(lambda t: t.pop(next(iter(t)))), 65, ("does not fit this model",), OVER),
    "model-gone": ("22", lambda: readdress_without("model.safetensors"), 65, ("does not fit", "model"), OVER),
}


def readdress_without(name: str) -> None:
    """The newest checkpoint without one of its files, listed so."""
    (LAST / name).unlink()
    plant(LAST, "note", b"x")


AT = ("eval", str(LAST))
MEASURED: dict[str, tuple[tuple[str, ...], Callable[[], object], int, tuple[str, ...], str]] = {
    "empty-folder": (
        ("eval", "e"),
        lambda: os.mkdir("e"),
        66,
        ("e is not a checkpoint", "without checkpoints"),
        "train where",
    ),
    "an-export": (
        ("eval", "e"),
        lambda: (os.mkdir("e"), Path("e/model.json").touch()),
        66,
        ("e is an exported model", "no checkpoint"),
        "train predict e IMAGES",
    ),
    "a-file": (("eval", "f"), lambda: Path("f").write_text(""), 66, ("it is a file",), "train where"),
    "one-damaged": (
        AT,
        lambda: DAMAGES["a flipped bit"](LAST),
        65,
        ("is damaged", "its hash"),
        "name another checkpoint",
    ),
    "state-without-config": (AT, bytes_of_state(b"{}"), 65, ("is damaged", "state.json"), "name another checkpoint"),
    "state-config-unknown": (
        AT,
        state(lambda s: put(s, "config", "optim", "lrr", value=1)),
        64,
        ("unknown key optim.lrr", "state.json"),
        "optim.lr",
    ),
    "other-model": (
        (*AT, "model.args.width=9"),
        lambda: None,
        64,
        ("model.args", "is the checkpoint's"),
        "leave it out",
    ),
    "code-of-the-run": (
        AT,
        state(lambda s: put(s, "config", "model", "name", value="torch.hub:load")),
        77,
        ("names code to run as you", "model.name: torch.hub:load"),
        "name the file of your training with --config FILE",
    ),
    "config-of-the-run": (
        (*AT, "--config", "runs/run/c.yaml"),
        lambda: (
            state(lambda s: put(s, "config", "model", value={"name": "torch.hub:load"}))(),
            Path("runs/run/c.yaml").write_text("model: {name: torch.hub:load}"),
        ),
        77,
        ("c.yaml lies in", "model.name: torch.hub:load"),
        "name the file that you wrote yourself",
    ),
    "other-lr": ((*AT, "optim.lr=3"), lambda: None, 64, ("optim.lr does not change an evaluation",), "leave it out"),
    "newer": (AT, lambda: reseal(LAST, format=99), 65, ("newer version", "format 99"), "the version that wrote it"),
    "link": (AT, lambda: linked(LAST / "manifest.json"), 77, ("symbolic link",), "delete this checkpoint"),
}
RANKED: dict[str, tuple[tuple[str, ...], Callable[[], object], int, tuple[str, ...], str]] = {
    "damaged-since": (
        (),
        lambda: DAMAGES["a flipped bit in the manifest"](LAST),
        65,
        ("is damaged", "manifest.json"),
        "another",
    ),
    "no-validation-images": (
        ("data.val_fraction=0",),
        lambda: None,
        66,
        ("no validation image", "data.val_fraction=0"),
        "--all",
    ),
    "no-model": (
        (),
        lambda: readdress_without("model.safetensors"),
        65,
        ("does not fit", "model.safetensors"),
        "data.root",
    ),
    "other-classes": (
        ("data.classes=5",),
        lambda: None,
        65,
        ("other classes", "5: outline-0, outline-1, outline-2", "2: outline-0, outline-1 (of the training)"),
        "data.classes",
    ),
    "other-folders": (
        ("data.name=folder", "data.root=birds", "--split=all"),
        lambda: write_classes(Path("birds"), emu=3, jay=3),
        65,
        ("other classes", "2: emu, jay (in birds)", "2: outline-0, outline-1"),
        "data.root",
    ),
    "other-data": (
        ("data.classes=5",),
        state(lambda s: drop(s, "data")),
        65,
        ("the checkpoint does not fit", "5 classes"),
        "data.root",
    ),
}


def torch_saved(value: Any) -> Make:
    return lambda folder: torch.save(value, folder / "w.pt")


def junk(folder: Path) -> None:
    """A zip archive like torch's, with no pickle in the place of its pickle."""
    with zipfile.ZipFile(folder / "w.pt", "w") as archive:
        for name, data in {"data.pkl": b"\x80\x02I1\n.", "version": b"3\n", "byteorder": b"little"}.items():
            archive.writestr(f"archive/{name}", data)


def own_weights(change: Callable[[dict[str, torch.Tensor]], object], name: str = "w.safetensors") -> Make:
    def make(folder: Path) -> None:
        tensors = load_file(template() / "run/checkpoints/step-00000008/model.safetensors")
        change(tensors)
        save_file(tensors, folder / name)

    return make


WEIGHTS: dict[str, tuple[Make, str, int, tuple[str, ...], str]] = {
    "a-pipe": (
        lambda f: os.mkfifo(f / "w.pt"),
        "w.pt",
        66,
        ("model.weights w.pt cannot be read", "no regular file"),
        "correct",
    ),
    "unknown-kind": (lambda f: (f / "w.h5").write_text("x"), "w.h5", 64, ("of no known kind", ".h5"), ".safetensors"),
    "hostile-pickle": (
        lambda f: (f / "w.pt").write_bytes(pickle.dumps(Hostile())),
        "w.pt",
        77,
        ("holds more than weights", "a pickle that torch.save did not write"),
        "state_dict()",
    ),
    "hostile-torch-file": (torch_saved({"state_dict": Hostile()}), "w.pt", 77, ("more than weights",), ".safetensors"),
    "text": (lambda f: (f / "w.pt").write_text("hello"), "w.pt", 65, ("damaged, or no such file",), "copy it again"),
    "zip-with-junk": (junk, "w.pt", 65, ("damaged", "torch.save did not write it"), "copy it again"),
    "a-list": (torch_saved([1]), "w.pt", 65, ("holds no state dict", "a list"), "model.state_dict()"),
    "another-model": (
        torch_saved({"fc.weight": torch.zeros(2, 2)}),
        "w.pt",
        65,
        ("do not fit this model", "missing", "unknown: fc.weight"),
        "model.name",
    ),
    "nan": (
        own_weights(lambda t: next(x for x in t.values() if x.is_floating_point()).fill_(float("nan"))),
        "w.safetensors",
        65,
        ("hold NaN",),
        "before their training diverged",
    ),
    "empty-folder": (lambda f: (f / "w").mkdir(), "w", 66, ("holds no checkpoint",), "a run's folder"),
    "damaged-checkpoint": (
        with_run(lambda: DAMAGES["cut short"](LAST)),
        str(LAST),
        65,
        ("is damaged",),
        "another checkpoint",
    ),
}
CASES = [
    *(
        resumed(id=f"saved-{name}", prepare=with_run(change), code=code, says=says, fix=fix, row=row)
        for name, (row, change, code, says, fix) in ROWS.items()
    ),
    resumed(
        id="changed-lr",
        prepare=run,
        line=("run.output_dir=runs", "optim.lr=0.02"),
        says=("the configuration is not the one", "optim.lr: 0.01 -> 0.02"),
        fix="another run.name",
        row="23",
    ),
    *(
        measured(id=f"eval-{name}", prepare=with_run(change), line=line, code=code, says=says, fix=fix)
        for name, (line, change, code, says, fix) in MEASURED.items()
    ),
    *(
        measured(
            id=f"evaluate-{name}",
            door=through_rank,
            prepare=with_run(change),
            line=("--evaluate", str(LAST), "--scratch", "scratch", *settings),
            writes=SCRATCH,
            code=code,
            says=says,
            fix=fix,
        )
        for name, (settings, change, code, says, fix) in RANKED.items()
    ),
    *(
        resumed(
            id=f"weights-{name}",
            prepare=make,
            line=("run.name=new", f"model.weights={path}"),
            writes=(*RUN, "runs/new", "runs/new/*"),
            code=code,
            says=says,
            fix=fix,
            row="51" if code == 77 else "",
        )
        for name, (make, path, code, says, fix) in WEIGHTS.items()
    ),
]
