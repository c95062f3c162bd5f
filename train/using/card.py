"""The facts of a model become its card, README.md: what it was trained on, how well it does, and how to load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from entrypoint import Failure, redact_words
from train.evaluation import figures
from train.evaluation.scores import Result
from train.optim import schedules
from train.record import record
from train.record.progress import many
from train.report import markdown
from train.report.document import Document, Facts, Section, Table, Words
from train.settings import names
from train.using import takes
from train.using.facts import About, section

LICENCE: Final = "Not stated. Whoever trained this model has to say it, and the data may have terms of its own."
NOT_MEASURED: Final = "Not measured at this step. `train eval` measures it again."
BYTES: Final = "bytes 0 to 255, given as (byte - 127.5) / 63.75"
OWN: Final = "Its code is not in this folder, and none is taken from here: have {module}.py beside your own program."
LOADING: Final = "\n## How to load it\n\nBeside this folder, with this project installed or in its image:\n\n"
FILES: Final = """from train.using import exported
{imports}
model = exported.load({folder!r}{factory})  # checked by its sha256; nothing is unpickled
images = model.read(["image.png"])  # float32 {shape}: cut, scaled and normalized{training}
shares = model.network(images).softmax(1)[0]
best = int(shares.argmax())
print(model.classes[best], float(shares[best]))
"""
TENSORS: Final = """import torch
from train.using import exported
{imports}
model = exported.load({folder!r}{factory})  # checked by its sha256; nothing is unpickled
samples = torch.zeros({shape})  # put yours here: {numbers}
shares = model.network(samples).softmax(1)[0]
print(model.classes[int(shares.argmax())], float(shares.max()))
"""


def text(about: About, folder: str) -> str:
    """The whole card, in Markdown. folder: its name, for the lines that load it."""
    sections = [
        Section(title="Model", blocks=[Facts(rows=_model(about)), *_doubt(about), *_own(about)]),
        Section(title="Data", blocks=[Facts(rows=_data(about))]),
        Section(title="Training", blocks=[Facts(rows=_training(about))]),
        Section(title="How good it is", blocks=list(_scores(about))),
        Section(title="Versions", blocks=[Facts(rows=_versions(about))]),
        Section(title="Licence", blocks=[Words(text=LICENCE)]),
    ]
    made = f"Written by train export, from step {about.step:,} of the run {about.config.run.name}."
    card = markdown.markdown(Document(title=about.config.run.name, made=made, sections=sections))
    return f"{card}{LOADING}```python\n{code(about, folder)}```\n"


def code(about: About, folder: str) -> str:
    """Six lines of Python that load the model and ask it; of a network of the user's own, seven."""
    shape, name = [1, *about.takes.shape.input], about.config.model.name
    module, _, function = name.partition(":") if names.is_factory(name) else ("", "", "")
    own = {
        "imports": f"from {module} import {function}  # the code that made the network\n" if module else "",
        "factory": f", factory={function}" if module else "",
    }
    try:
        takes.refuse_files(about.takes)
    except Failure:
        numbers = "bytes less 127.5, by 63.75" if about.takes.bytes_ else "numbers as in the training's data"
        return TENSORS.format(folder=folder, shape=shape, numbers=numbers, **own)
    training = " as in the training" if takes.doubt(about.takes) is None else ""
    return FILES.format(folder=folder, shape=shape, training=training, **own)


def _model(about: About) -> dict[str, str]:
    numbers = sum(tensor.numel() for tensor in about.tensors.values())
    args = ", ".join(redact_words(f"{name}={value}" for name, value in about.config.model.args.items()))
    return {
        "network": about.config.model.name + (f" ({args})" if args else ""),
        "takes": f"{about.takes.shape}, {BYTES if about.takes.bytes_ else 'floats as they are'}",
        "gives": f"one score for each of {many(len(about.takes.classes), 'class').replace('classs', 'classes')}",
        "weights": f"{numbers:,} numbers in {many(len(about.tensors), 'tensor')}"
        + (", averaged over steps (train.ema_decay)" if about.averaged else ""),
    }


def _doubt(about: About) -> Iterator[Words]:
    """Nothing where image files are refused."""
    with suppress(Failure):
        takes.refuse_files(about.takes)
        if text := takes.doubt(about.takes):
            yield Words(text=f"{text[0].upper()}{text[1:]}.", caution=True)


def _own(about: About) -> Iterator[Words]:
    name = about.config.model.name
    if names.is_factory(name):
        yield Words(text=OWN.format(module=name.partition(":")[0].replace(".", "/")), caution=True)


def _data(about: About) -> dict[str, str]:
    data = section(about.told, "data")
    counted = {
        f"{side.replace('_', '-')} samples": f"{data[side]:,}"
        for side in ("training", "held_out")
        if isinstance(data.get(side), int)
    }
    return {"name": about.config.data.name, **counted, "classes": ", ".join(about.takes.classes)}


def _training(about: About) -> dict[str, str]:
    config, training = about.config, section(about.recorded, "training")
    world, each = about.told.get("world_size"), training.get("steps_per_epoch")
    optim, precision = config.optim, training.get("precision", config.train.precision)
    rate = schedules.peak(optim, config.train.global_batch_size)
    rows = {
        "steps": f"{about.step:,}",
        "epochs": f"{about.step / each:g}" if isinstance(each, int) and each > 0 else None,
        "global batch": f"{config.train.global_batch_size:,}",
        "optimizer": f"{optim.name}, learning rate {rate:g}, {optim.schedule}",
        "precision": str(precision),
        "world": many(world, "rank") if isinstance(world, int) else None,
        "device": str(training["device"]) if "device" in training else None,
        "seed": str(config.run.seed),
        "started from": config.model.weights,
    }
    return {name: value for name, value in rows.items() if value is not None}


def _scores(about: About) -> Iterator[Facts | Table | Words]:
    result = about.result
    if result is None:
        yield Words(text=NOT_MEASURED)
        return
    yield Facts(rows=figures.facts(result, about.takes.classes))
    if result.recall is not None:
        yield Table(head=["class", "recall"], rows=_recall(result, about.takes.classes))


def _recall(result: Result, classes: tuple[str, ...]) -> list[list[str]]:
    shares = result.recall or ()
    return [[name, "-" if share is None else f"{share:.1%}"] for name, share in zip(classes, shares, strict=False)]


def _versions(about: About) -> Mapping[str, str]:
    """Of the last start that trained, where its run.json is there; else those of this machine, and said so."""
    trained = section(about.recorded, "versions")
    named = trained or {f"{name} (at export)": version for name, version in record.versions().items()}
    commit = about.recorded.get("git")
    git = {"git": commit} if isinstance(commit, str) else {}
    return {name: str(version) for name, version in {**named, **git}.items() if version is not None}
