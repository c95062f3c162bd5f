"""What `train predict` and `train export` are given that is no image, no export, or a place with something in it."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import Any

from bad import saved
from bad.case import Case, through_train
from images import write_image

from train import __main__ as front

predict, export = partial(Case, door=through_train), partial(Case, door=through_train, code=73)
RUN, CPU = "runs/run", ("--device", "cpu")
asked = ("predict", RUN, "a.png", *CPU)
of_export = ("predict", "model", "a.png", *CPU)


@cache
def template() -> Path:
    """The run of `saved`, handed on once."""
    folder = Path(tempfile.mkdtemp(prefix="bad-export-")) / "model"
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    with redirect_stdout(io.StringIO()):
        assert front.run_command(["export", str(saved.template() / "run"), "--output", str(folder)], {}) == 0
    return folder


def with_run(folder: Path) -> None:
    saved.run(folder)
    write_image(Path("a.png"))


def with_export(change: Callable[[dict[str, Any]], object] = lambda record: None) -> Callable[[Path], None]:
    """A folder of `train export` whose description was changed, and an image."""

    def make(folder: Path) -> None:
        shutil.copytree(template(), folder / "model")
        write_image(Path("a.png"))
        record = json.loads(Path("model/model.json").read_text())
        change(record)
        Path("model/model.json").write_text(json.dumps(record))

    return make


def replaced(name: str, text: str) -> Callable[[Path], None]:
    """The same, with another file in its place."""

    def make(folder: Path) -> None:
        with_export()(folder)
        Path("model", name).write_text(text)

    return make


def unreadable(folder: Path) -> None:
    with_export()(folder)
    Path("model/model.json").unlink()
    Path("model/model.json").mkdir()


def with_folder(folder: Path) -> None:
    with_run(folder)
    Path("none").mkdir()


def with_broken(folder: Path) -> None:
    with_run(folder)
    Path("b.png").write_text("no image")


def with_something(folder: Path) -> None:
    saved.run(folder)
    Path("model").mkdir()
    Path("model/thesis.md").write_text("mine")


def with_a_file(folder: Path) -> None:
    saved.run(folder)
    Path("model").write_text("mine")


def another_size(record: dict[str, Any]) -> None:
    record["classes"] = record["classes"][:-1]


refused = partial(
    predict, line=of_export, code=65, says=("the export model cannot be read back",), fix="export it again"
)
CASES = [
    predict(
        id="predict-top-0", prepare=with_run, line=(*asked, "--top", "0"), code=64, says=("--top 0",), fix="--top 5"
    ),
    predict(
        id="predict-device-tpu",
        prepare=with_run,
        line=("predict", RUN, "a.png", "--device", "tpu"),
        code=64,
        says=("--device=tpu",),
        fix="auto, cpu or cuda",
    ),
    predict(
        id="predict-nothing", prepare=with_run, line=("predict", RUN), code=64, says=("no image",), fix="name image"
    ),
    predict(
        id="predict-columns-without-a-table",
        prepare=with_run,
        line=("predict", RUN, "a.png", "--all-classes"),
        code=64,
        says=("--all-classes adds columns to a table",),
        fix="--csv FILE.csv",
    ),
    predict(
        id="predict-a-table-as-json",
        prepare=with_run,
        line=("predict", RUN, "a.png", "--json", "--csv", "out.csv"),
        code=64,
        says=("--json and --csv",),
        fix="leave one of them out",
    ),
    predict(
        id="predict-a-table-over-an-image",
        prepare=with_run,
        line=("predict", RUN, "b.png", "--csv", "a.png"),
        code=64,
        says=("takes the name of a .csv file", "a.png"),
        fix="--csv a.png.csv",
    ),
    predict(
        id="predict-a-table-into-no-folder",
        prepare=with_run,
        line=("predict", RUN, "a.png", "--csv", "none/out.csv"),
        code=73,
        says=("cannot write none/out.csv", "none is no folder"),
        fix="mkdir -p none",
    ),
    predict(
        id="predict-what-is-not-there",
        prepare=with_run,
        line=("predict", RUN, "b.png"),
        code=66,
        says=("b.png does not exist",),
        fix="correct the path",
    ),
    predict(
        id="predict-an-empty-folder",
        prepare=with_folder,
        line=("predict", RUN, "none"),
        code=66,
        says=("none holds no image",),
        fix="name a folder with images",
    ),
    predict(
        id="predict-no-image",
        prepare=with_broken,
        line=("predict", RUN, "a.png", "b.png", *CPU),
        code=65,
        says=("1 of 2",),
        fix="leave it out",
    ),
    predict(
        id="predict-settings-of-an-export",
        prepare=with_export(),
        line=(*of_export, "data.image_size=16"),
        code=64,
        says=("an exported model has no settings", "data.image_size=16"),
        fix="leave them out",
    ),
    predict(
        id="predict-by-a-model-of-floats",
        prepare=with_export(lambda record: record["input"].update(numbers="float32")),
        line=of_export,
        code=64,
        says=("this model does not take image files",),
        fix="train eval RUN",
    ),
    predict(
        id="predict-by-an-export-without-a-description",
        prepare=unreadable,
        line=of_export,
        code=66,
        says=("model is no export",),
        fix="train export",
    ),
    refused(
        id="predict-by-an-export-that-is-no-json",
        prepare=replaced("model.json", "{"),
    ),
    refused(id="predict-by-a-newer-export", prepare=with_export(lambda record: record.update(format=2))),
    refused(id="predict-by-an-export-without-a-network", prepare=with_export(lambda record: record.pop("name"))),
    refused(id="predict-by-an-export-without-classes", prepare=with_export(lambda record: record.pop("classes"))),
    refused(id="predict-by-an-export-of-fewer-classes", prepare=with_export(another_size)),
    refused(id="predict-by-other-weights", prepare=replaced("model.safetensors", "os.system")),
    export(
        id="export-into-a-file",
        prepare=with_a_file,
        line=("export", RUN, "--output", "model"),
        says=("model is not empty", "it is a file"),
        fix="--output",
    ),
    export(
        id="export-over-the-users-own",
        prepare=with_something,
        line=("export", RUN, "--output", "model"),
        says=("model is not empty", "thesis.md"),
        fix="--output",
    ),
    predict(
        id="export-to-a-format-that-there-is-not",
        prepare=saved.run,
        line=("export", RUN, "--output", "model", "--format", "torch,tensorrt"),
        code=64,
        says=("--format has no 'tensorrt'", "safetensors, torch, onnx"),
        fix="--format torch,onnx",
    ),
    predict(
        id="profile-lines-of-a-check",
        line=("check", "--profile-lines"),
        code=64,
        says=("--profile-lines belongs to a training",),
        fix="leave --profile-lines out",
    ),
]
