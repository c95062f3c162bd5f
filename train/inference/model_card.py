"""The model card (README.md) describes an exported model from its checkpoint and its run.json.

It says what the model was trained on, how good it is, and how to load it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from entrypoint import pluralize, redact_words
from train.checkpoint import store
from train.checkpoint.store import CommittedCheckpoint
from train.config import resume_rules, schema
from train.config.resolved import resolve_learning_rate
from train.config.schema import RunConfig
from train.data import decode, registry
from train.data.preprocessing import Preprocessing
from train.data_fit import describe_image_file_obstacle
from train.evaluation import results
from train.evaluation.results import EvaluationResult, FinalScore, read_final_score
from train.inference import checkpoints, evaluate, inputs
from train.inference.inputs import InputSpec
from train.inference.model_code import ModelCode, path_literal
from train.metrics import METRICS, metrics_of
from train.models.weights import fit_stem_to
from train.optim import schedule
from train.report.document import render_text
from train.run import record
from train.tasks import TASKS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts about a trained model."""

    config: RunConfig
    input_spec: InputSpec
    path: Path
    step: int
    tensors: Mapping[str, Tensor]  # the EMA weights, if there are any
    averaged: bool
    state: Mapping[str, Any]  # the checkpoint's state.json
    recorded: Mapping[str, Any]  # run.json of its run; empty if it is missing
    # Whether the run measured the mean with mirror images (eval.flip), which no file computes.
    flipped: bool = False
    changed: tuple[str, ...] = ()  # the settings of the input that are not those with which the run measured
    caution: str | None = None  # about weights of a run whose training diverged
    final: FinalScore | None = None  # the score of the test split

    @property
    def precision(self) -> str:
        """In which the run trained and measured."""
        return str(submapping(self.recorded, "training").get("precision", self.config.train.precision))

    @property
    def run_result(self) -> EvaluationResult | None:
        """The run's evaluation of exactly these weights, or None."""
        return self._result("result")

    @property
    def result(self) -> EvaluationResult | None:
        """The evaluation of exactly this network, for one image as it is, or None."""
        return None if self.changed else self._result("unflipped" if self.flipped else "result")

    @property
    def test_result(self) -> EvaluationResult | None:
        """The test split's evaluation of exactly this network, for one image as it is, or None."""
        final = None if self.changed or self.flipped else self.final
        return final.result if final is not None and final.step == self.step else None

    def _result(self, name: str) -> EvaluationResult | None:
        progress = submapping(self.state, "state")
        if not progress.get(name) or progress.get("evaluated") != self.step:
            return None
        return EvaluationResult.from_json(progress[name])


def collect_model_facts(config: RunConfig, chosen: CommittedCheckpoint) -> ModelFacts:
    """Collect the facts. Raises Failure as `evaluate.load_weights` and `inputs.build_input_spec`."""
    state, weights = store.read_state(chosen), evaluate.load_weights(chosen)
    trained = checkpoints.load_training_config(chosen)
    alone = replace(config, eval=replace(config.eval, flip=False))
    run = chosen.path.parents[1] if chosen.path.parent.name == "checkpoints" else None
    return ModelFacts(
        # The initial weights, which decided the stem, may be gone: those of the checkpoint have it too.
        config=replace(config, model=fit_stem_to(config.model, weights.tensors)),
        input_spec=inputs.build_input_spec(alone, state),
        path=chosen.path,
        step=chosen.step,
        tensors=weights.tensors,
        averaged=weights.averaged,
        state=state,
        recorded=(run and record.read_run(run)) or {},
        flipped=trained.eval.flip,
        changed=checkpoints.input_changes(trained, config),
        caution=record.describe_divergence(chosen.path),
        final=None if run is None else read_final_score(run),
    )


def submapping(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A mapping inside `mapping`; empty if it is missing or has another type."""
    value = mapping.get(name)
    return value if isinstance(value, Mapping) else {}


def render_card(about: ModelFacts, folder: str, code: ModelCode, formats: Sequence[str] = ()) -> str:
    """Render the card as Markdown.

    folder: its name, for the loading examples. formats: of the files beside the weights, as in `file_formats.FORMATS`.

    huggingface_hub's ModelCard is not used: it escapes nothing, so a hostile name of a class or run would be markup, it
    leaves all facts to the template, and its import takes 0.15 s.
    """
    spec, config, data = about.input_spec, about.config, submapping(about.state, "data")
    counted = {
        f"{name} samples": f"{data[key]:,}"
        for key, name in resume_rules.SPLIT_NAMES.items()
        if isinstance(data.get(key), int)
    }
    training = submapping(about.recorded, "training")
    resolved = resolve_learning_rate(config)  # earlier versions recorded `auto`
    return render_text(
        "card.md",
        {
            "about": about,
            "spec": spec,
            "config": config,
            "code": code,
            "formats": formats,
            "arguments": ", ".join(redact_words(f"{name}={value}" for name, value in config.model.args.items())),
            "normalization": _describe_normalization(spec.preprocessing),
            "numbers": sum(tensor.numel() for tensor in about.tensors.values()),
            "warning": inputs.array_data_warning(spec),
            "takes_images": takes_images(spec),
            "is_custom": schema.is_factory(config.model.name),
            "data": {"name": config.data.name, **counted, TASKS[spec.task].noun: ", ".join(spec.classes)},
            "training": training,
            "steps_per_epoch": training.get("steps_per_epoch"),
            "learning_rate": schedule.peak_learning_rate(resolved, config.train.global_batch_size),
            "versions": _version_rows(about),
            "metric_rows": results.metric_rows,
            "pluralize": pluralize,
            "zip": zip,
            "head": Markup(_hub_metadata(about)),
            "loading": Markup(loading_example(spec, folder, code)),
            "torch_file": Markup(path_literal(folder, "model.pt2")),
            "onnx": Markup(loading_example(spec, folder)),
        },
    )


def _version_rows(about: ModelFacts) -> Mapping[str, str]:
    """Versions from run.json, or those of this machine, marked `(at export)`."""
    recorded = submapping(about.recorded, "versions")
    versions = recorded or {f"{name} (at export)": version for name, version in record.package_versions().items()}
    commit = about.recorded.get("git")
    git = {"git": commit} if isinstance(commit, str) else {}
    return {name: str(version) for name, version in {**versions, **git}.items() if version is not None}


def _hub_metadata(about: ModelFacts) -> str:
    """The head of the card in YAML: a hub shows licence, tags and scores from it (huggingface.co/docs/hub/model-cards).

    Nobody has stated a licence. `datasets` are those that a hub has; a folder of one's own is none.
    """
    spec, data = about.input_spec, about.config.data
    medium, entry = "image" if len(spec.shape.size) == 2 else "video", TASKS[spec.task]
    task = f"{medium}-{'classification' if entry.has_classes else 'regression'}"
    is_published = schema.DATA_SOURCES.get(data.name, "").startswith("published:")
    is_own = registry.find_source(data.name).origin == "files" and not is_published
    dataset = {"type": "imagefolder" if data.name == "folder" else data.name, "name": data.name}
    dataset |= {"name": Path(data.root).name or data.name} if is_own else {}
    fewest = max(len(spec.classes), 2)
    metrics = [name for name, metric in metrics_of(spec.task).items() if metric.min_classes <= fewest]
    measured = {"validation": about.result, "test": about.test_result}
    results: list[dict[str, Any]] = [
        {
            "task": {"type": task, "name": spec.task.replace("_", " ")},
            "dataset": {**dataset, "split": split},
            "metrics": [
                {"type": name, "value": value, "name": METRICS[name].label}
                for name in result.values
                if name in metrics and (value := result.value(name)) is not None
            ],
        }
        for split, result in measured.items()
        if result is not None
    ]
    head: dict[str, Any] = {
        "license": "unknown",
        "library_name": "pytorch",
        "tags": [task, "pytorch", about.config.model.name],
        "metrics": metrics,
        "datasets": [data.name] if is_published else [],
        **({"pipeline_tag": task} if entry.has_classes else {}),
        **({"model-index": [{"name": about.config.run.name, "results": results}]} if results else {}),
    }
    return str(yaml.safe_dump(head, sort_keys=False, allow_unicode=True))


def takes_images(spec: InputSpec) -> bool:
    """Whether image files can become the network's input."""
    return describe_image_file_obstacle(spec.shape, bytes_=spec.bytes_) is None


def loading_example(spec: InputSpec, folder: str, code: ModelCode | None = None) -> str:
    """Lines of Python that print what the network says of one image.

    code: it builds the network, whose weights the lines load; without it they run the ONNX file.
    """
    preprocessing, (height, width) = spec.preprocessing, spec.shape.size[-2:]
    least_width, least_height = decode.covered_size((width, height), preprocessing)
    lines = Environment(
        loader=PackageLoader("train.report"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return lines.get_template("loading.jinja").render(
        code=code,
        path=partial(path_literal, folder),
        task=TASKS[spec.task],
        takes_images=takes_images(spec),
        shape=[1, *spec.shape.input],
        stored=spec.shape.stored,
        numbers=f"given as {_describe_normalization(preprocessing)}"
        if spec.bytes_
        else "floats as in the training's data",
        mean=[*preprocessing.mean],
        std=[*preprocessing.std],
        fit=preprocessing.fit,
        cuts_first=preprocessing.fit == "crop" and preprocessing.crop_ratio == 1,
        reduces=preprocessing.decode != "exact" and spec.origin != "pictures",
        from_arrays=inputs.array_data_warning(spec) is not None,
        is_gray=spec.shape.channels == 1,
        width=width,
        height=height,
        least_width=least_width,
        least_height=least_height,
        resampling=f"Image.Resampling.{preprocessing.interpolation.upper()}",
        color=decode.fill_color(preprocessing, 3),
    )


def _describe_normalization(preprocessing: Preprocessing) -> str:
    """`(byte - 127.5) / 63.75`; with means for each channel `(byte / 255 - [...]) / [...]`."""
    mean, std = preprocessing.mean, preprocessing.std
    if len(mean) == len(std) == 1:
        return f"(byte - {255 * mean[0]:g}) / {255 * std[0]:g}"
    return f"(byte / 255 - {[*mean]}) / {[*std]}"
