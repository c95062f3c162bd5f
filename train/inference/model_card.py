"""The model card (README.md) describes an exported model from its checkpoint and its run.json.

It says what the model was trained on, how good it is, and how to load it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from entrypoint import Failure, redact_words
from train.config import resume_rules, schema
from train.config.schema import RunConfig
from train.evaluation import results
from train.evaluation.results import EvaluationResult
from train.inference import checkpoints, evaluate, inputs
from train.inference.checkpoints import ChosenCheckpoint
from train.inference.inputs import InputSpec
from train.logging.progress import pluralize
from train.optim import schedule
from train.report.document import DescriptionList, Paragraph, Report, Section, Table
from train.run import record


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts about a trained model.

    tensors: the EMA weights if there are any. state: the checkpoint's state.json. recorded: run.json
    of its run; empty if it is missing.
    """

    config: RunConfig
    input_spec: InputSpec
    path: Path
    step: int
    tensors: Mapping[str, Tensor]
    averaged: bool
    state: Mapping[str, Any]
    recorded: Mapping[str, Any]

    @property
    def result(self) -> EvaluationResult | None:
        """The evaluation of exactly these weights, or None."""
        progress = submapping(self.state, "state")
        if not progress.get("result") or progress.get("evaluated") != self.step:
            return None
        return EvaluationResult.from_json(progress["result"])


def collect_model_facts(config: RunConfig, chosen: ChosenCheckpoint) -> ModelFacts:
    """Collect the facts. Raises Failure as `evaluate.load_weights` and `inputs.build_input_spec`."""
    state, weights = checkpoints.read_state(chosen), evaluate.load_weights(chosen)
    return ModelFacts(
        config=config,
        input_spec=inputs.build_input_spec(config, state),
        path=chosen.path,
        step=chosen.contents.step,
        tensors=weights.tensors,
        averaged=weights.averaged,
        state=state,
        recorded=_read_run_record(chosen.path),
    )


def submapping(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A mapping inside `mapping`; empty if it is missing or has another type."""
    value = mapping.get(name)
    return value if isinstance(value, Mapping) else {}


def _read_run_record(checkpoint: Path) -> Mapping[str, Any]:
    inside = checkpoint.parent.name == "checkpoints"
    return (record.read_run(checkpoint.parents[1]) if inside else None) or {}


LICENSE_TEXT: Final = "Not stated. Whoever trained this model has to say it, and the data may have terms of its own."
NOT_MEASURED_TEXT: Final = "Not measured at this step. `train eval` measures it again."
BYTES_TEXT: Final = "bytes 0 to 255, given as (byte - 127.5) / 63.75"
CUSTOM_CODE_TEXT: Final = (
    "Its code is not in this folder, and none is taken from here: have {module}.py beside your own program."
)
LOADING_HEADING: Final = "\n## How to load it\n\nBeside this folder, with this project installed or in its image:\n\n"
LOADING_EXAMPLE: Final = """import torch
from train.inference.export import load_exported
{imports}
model = load_exported({folder!r}{factory})  # checked by its sha256; nothing is unpickled
samples = {samples}
shares = model.network(samples).softmax(1)[0]
print(model.classes[int(shares.argmax())], float(shares.max()))
"""


def render_card(about: ModelFacts, folder: str) -> str:
    """Render the card as Markdown. folder: its name, for the loading example.

    huggingface_hub's ModelCard is not used: it escapes nothing, so a hostile name of a class or run would be markup, it
    leaves all facts to the template, and its import takes 0.15 s.
    """
    from train.report import render  # jinja2, only for an export

    sections = [
        Section(
            title="Model",
            blocks=[
                DescriptionList(rows=_model_rows(about)),
                *_array_data_caution(about),
                *_custom_code_caution(about),
            ],
        ),
        Section(title="Data", blocks=[DescriptionList(rows=_data_rows(about))]),
        Section(title="Training", blocks=[DescriptionList(rows=_training_rows(about))]),
        Section(title="How good it is", blocks=list(_metric_blocks(about))),
        Section(title="Versions", blocks=[DescriptionList(rows=_version_rows(about))]),
        Section(title="Licence", blocks=[Paragraph(text=LICENSE_TEXT)]),
    ]
    origin = f"Written by train export, from step {about.step:,} of the run {about.config.run.name}."
    card = render.render_markdown(Report(title=about.config.run.name, byline=origin, sections=sections))
    return f"{card}{LOADING_HEADING}```python\n{loading_example(about, folder)}```\n"


def loading_example(about: ModelFacts, folder: str) -> str:
    """A few lines of Python that load the model and predict one image."""
    shape, name = [1, *about.input_spec.shape.input], about.config.model.name
    module, _, function = name.partition(":") if schema.is_factory(name) else ("", "", "")
    factory_lines = {
        "imports": f"from {module} import {function}  # the code that made the network\n" if module else "",
        "factory": f", factory={function}" if module else "",
    }
    try:
        inputs.refuse_image_files(about.input_spec)
    except Failure:
        numbers = "bytes less 127.5, by 63.75" if about.input_spec.bytes_ else "numbers as in the training's data"
        samples = f"torch.zeros({shape})  # put yours here: {numbers}"
    else:
        training = " as in the training" if inputs.array_data_warning(about.input_spec) is None else ""
        samples = f'model.read(["image.png"])  # float32 {shape}: cut, scaled and normalized{training}'
    return LOADING_EXAMPLE.format(folder=folder, samples=samples, **factory_lines)


def _model_rows(about: ModelFacts) -> dict[str, str]:
    numbers = sum(tensor.numel() for tensor in about.tensors.values())
    args = ", ".join(redact_words(f"{name}={value}" for name, value in about.config.model.args.items()))
    return {
        "network": about.config.model.name + (f" ({args})" if args else ""),
        "takes": f"{about.input_spec.shape}, {BYTES_TEXT if about.input_spec.bytes_ else 'floats as they are'}",
        "gives": f"one score for each of {pluralize(len(about.input_spec.classes), 'class')}",
        "weights": f"{numbers:,} numbers in {pluralize(len(about.tensors), 'tensor')}"
        + (", averaged over steps (train.ema_decay)" if about.averaged else ""),
    }


def _array_data_caution(about: ModelFacts) -> Iterator[Paragraph]:
    """A caution for models trained on arrays; none if image files are refused anyway."""
    with suppress(Failure):
        inputs.refuse_image_files(about.input_spec)
        if text := inputs.array_data_warning(about.input_spec):
            yield Paragraph(text=f"{text[0].upper()}{text[1:]}.", caution=True)


def _custom_code_caution(about: ModelFacts) -> Iterator[Paragraph]:
    name = about.config.model.name
    if schema.is_factory(name):
        yield Paragraph(text=CUSTOM_CODE_TEXT.format(module=name.partition(":")[0].replace(".", "/")), caution=True)


def _data_rows(about: ModelFacts) -> dict[str, str]:
    data = submapping(about.state, "data")
    counted = {
        f"{name} samples": f"{data[key]:,}"
        for key, name in resume_rules.SPLIT_NAMES.items()
        if isinstance(data.get(key), int)
    }
    return {"name": about.config.data.name, **counted, "classes": ", ".join(about.input_spec.classes)}


def _training_rows(about: ModelFacts) -> dict[str, str]:
    config, training = about.config, submapping(about.recorded, "training")
    world, steps_per_epoch = about.state.get("world_size"), training.get("steps_per_epoch")
    optim, precision = config.optim, training.get("precision", config.train.precision)
    resolved = schedule.resolve_learning_rate(config)
    learning_rate = schedule.peak_learning_rate(resolved, config.train.global_batch_size)
    rows = {
        "steps": f"{about.step:,}",
        "epochs": f"{about.step / steps_per_epoch:g}"
        if isinstance(steps_per_epoch, int) and steps_per_epoch > 0
        else None,
        "global batch": f"{config.train.global_batch_size:,}",
        "optimizer": f"{optim.name}, learning rate {learning_rate:g}, {optim.schedule}",
        "precision": str(precision),
        "world": pluralize(world, "rank") if isinstance(world, int) else None,
        "device": str(training["device"]) if "device" in training else None,
        "seed": str(config.run.seed),
        "started from": config.model.weights,
    }
    return {name: value for name, value in rows.items() if value is not None}


def _metric_blocks(about: ModelFacts) -> Iterator[DescriptionList | Table | Paragraph]:
    result = about.result
    if result is None:
        yield Paragraph(text=NOT_MEASURED_TEXT)
        return
    yield DescriptionList(rows=results.metric_rows(result, about.input_spec.classes))
    if result.recall is not None:
        recalls = zip(about.input_spec.classes, result.recall, strict=False)
        rows = [[name, "-" if share is None else f"{share:.1%}"] for name, share in recalls]
        yield Table(head=["class", "recall"], rows=rows)


def _version_rows(about: ModelFacts) -> Mapping[str, str]:
    """Versions from run.json, or those of this machine, marked `(at export)`."""
    recorded = submapping(about.recorded, "versions")
    versions = recorded or {f"{name} (at export)": version for name, version in record.package_versions().items()}
    commit = about.recorded.get("git")
    git = {"git": commit} if isinstance(commit, str) else {}
    return {name: str(version) for name, version in {**versions, **git}.items() if version is not None}
