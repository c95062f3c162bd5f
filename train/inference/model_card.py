"""The model card (README.md) describes an exported model from its checkpoint and its run.json.

It says what the model was trained on, how good it is, and how to load it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from torch import Tensor

from entrypoint import Failure, pluralize, redact_words
from train.config import checks, resume_rules, schema
from train.config.schema import RunConfig
from train.data import decode, registry
from train.data.preprocessing import FitName, Preprocessing
from train.evaluation import results
from train.evaluation.results import EvaluationResult, FinalScore, read_final_score
from train.inference import checkpoints, evaluate, inputs
from train.inference.checkpoints import ChosenCheckpoint
from train.inference.inputs import InputSpec
from train.inference.model_code import ModelCode, path_literal
from train.metrics import METRICS, metrics_of
from train.models.weights import fit_stem_to
from train.optim import schedule
from train.report.document import DescriptionList, Paragraph, Report, Section, Table, render_markdown
from train.run import record
from train.tasks import MULTI_LABEL, REGRESSION, TASKS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts about a trained model.

    tensors: the EMA weights if there are any. state: the checkpoint's state.json. recorded: run.json
    of its run; empty if it is missing. flipped: whether the run measured the mean with mirror images (eval.flip), which
    no file computes. changed: the settings of the input that are not those with which the run measured. caution: about
    weights of a run whose training diverged. final: the score of the test split.
    """

    config: RunConfig
    input_spec: InputSpec
    path: Path
    step: int
    tensors: Mapping[str, Tensor]
    averaged: bool
    state: Mapping[str, Any]
    recorded: Mapping[str, Any]
    flipped: bool = False
    changed: tuple[str, ...] = ()
    caution: str | None = None
    final: FinalScore | None = None

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


def collect_model_facts(config: RunConfig, chosen: ChosenCheckpoint) -> ModelFacts:
    """Collect the facts. Raises Failure as `evaluate.load_weights` and `inputs.build_input_spec`."""
    state, weights = checkpoints.read_state(chosen), evaluate.load_weights(chosen)
    trained = checkpoints.load_training_config(chosen)
    alone = replace(config, eval=replace(config.eval, flip=False))
    return ModelFacts(
        # The initial weights, which decided the stem, may be gone: those of the checkpoint have it too.
        config=replace(config, model=fit_stem_to(config.model, weights.tensors)),
        input_spec=inputs.build_input_spec(alone, state),
        path=chosen.path,
        step=chosen.contents.step,
        tensors=weights.tensors,
        averaged=weights.averaged,
        state=state,
        recorded=_read_run_record(chosen.path),
        flipped=trained.eval.flip,
        changed=checkpoints.input_changes(trained, config),
        caution=record.describe_divergence(chosen.path),
        final=read_final_score(chosen.path.parents[1]) if chosen.path.parent.name == "checkpoints" else None,
    )


def submapping(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A mapping inside `mapping`; empty if it is missing or has another type."""
    value = mapping.get(name)
    return value if isinstance(value, Mapping) else {}


def _read_run_record(checkpoint: Path) -> Mapping[str, Any]:
    inside = checkpoint.parent.name == "checkpoints"
    return (record.read_run(checkpoint.parents[1]) if inside else None) or {}


NOT_MEASURED_TEXT: Final = "Not measured at this step. `train eval` measures it again."
CHANGED_TEXT: Final = "Not measured with this input: the run measured another ({}). `train eval` takes these settings."
FLIPPED_TEXT: Final = (
    "Not measured: the run measured the mean of the outputs for each image and its mirror image (eval.flip), and this "
    "network computes one of them. `train eval RUN eval.flip=false` measures it."
)
CUSTOM_CODE_TEXT: Final = (
    "Its code is not in this folder, and none is taken from here: have {module}.py beside your own program."
)


def render_card(about: ModelFacts, folder: str, code: ModelCode, formats: Sequence[str] = ()) -> str:
    """Render the card as Markdown.

    folder: its name, for the loading examples. formats: of the files beside the weights, as in `file_formats.FORMATS`.

    huggingface_hub's ModelCard is not used: it escapes nothing, so a hostile name of a class or run would be markup, it
    leaves all facts to the template, and its import takes 0.15 s.
    """
    sections = [
        Section(
            title="Model",
            blocks=[
                DescriptionList(rows=_model_rows(about)),
                *(Paragraph(text=text, caution=True) for text in _cautions(about)),
            ],
        ),
        Section(title="Data", blocks=[DescriptionList(rows=_data_rows(about))]),
        Section(title="Training", blocks=[DescriptionList(rows=_training_rows(about))]),
        Section(title="How good it is", blocks=list(_metric_blocks(about))),
        Section(title="Versions", blocks=[DescriptionList(rows=_version_rows(about))]),
    ]
    origin = f"Written by train export, from step {about.step:,} of the run {about.config.run.name}."
    report = Report(title=about.config.run.name, byline=origin, sections=sections)
    spec = about.input_spec
    return render_markdown(
        report,
        "card.md",
        head=_hub_metadata(about),
        loading=loading_example(spec, folder, code),
        has_own_code="" if code.file is None else "yes",
        takes_images="yes" if takes_images(spec) else "",
        torch_file=path_literal(folder, "model.pt2") if "torch" in formats else "",
        onnx=onnx_example(spec, folder) if "onnx" in formats else "",
    )


def _hub_metadata(about: ModelFacts) -> str:
    """The head of the card in YAML: a hub shows licence, tags and scores from it (huggingface.co/docs/hub/model-cards).

    Nobody has stated a licence. `datasets` are those that a hub has; a folder of one's own is none.
    """
    spec, data = about.input_spec, about.config.data
    medium = "image" if len(spec.shape.size) == 2 else "video"
    task = f"{medium}-{'regression' if spec.task == REGRESSION else 'classification'}"
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
        **({} if spec.task == REGRESSION else {"pipeline_tag": task}),
        **({"model-index": [{"name": about.config.run.name, "results": results}]} if results else {}),
    }
    return str(yaml.safe_dump(head, sort_keys=False, allow_unicode=True))


def takes_images(spec: InputSpec) -> bool:
    """Whether image files can become the network's input."""
    try:
        inputs.refuse_image_files(spec)
    except Failure:
        return False
    return True


def loading_example(spec: InputSpec, folder: str, code: ModelCode) -> str:
    """Lines of Python that build the network, load its weights, and print what it says of one image."""
    if takes_images(spec):
        imports = [
            "from PIL import Image, ImageOps",
            "from torchvision.transforms.functional import normalize, pil_to_tensor",
        ]
        mean, std = ([*numbers] for numbers in (spec.preprocessing.mean, spec.preprocessing.std))
        images = [*_image_lines(spec), f"images = normalize(pil_to_tensor(image) / 255, {mean}, {std})[None]"]
    else:
        imports = []
        images = [f"images = torch.zeros({[1, *spec.shape.input]})  # put yours here: {_describe_numbers(spec)}"]
    return "\n".join(
        [
            "import json",
            *sorted(code.imports),
            "import torch",
            *imports,
            "from safetensors.torch import load_file",
            "",
            f'description = json.load(open({path_literal(folder, "model.json")}, "rb"))',
            *code.lines,
            f"network.load_state_dict(load_file({path_literal(folder, 'model.safetensors')}))",
            *images,
            "outputs = network.eval()(images)[0]",
            TASKS[spec.task].example,
        ]
    )


# The card's code does with Pillow what `decode.decode_image` does, pixel by pixel. The size to which the whole image is
# scaled, by data.fit:
SCALED_SIZE_LINE: Final = "def scaled_size(width, height):  # of the whole image\n"
SCALED_SIZES: Final[Mapping[FitName, str]] = {
    "crop": """\
    if height * {least_width} <= width * {least_height}:
        return int({least_height} * width / height), {least_height}
    return {least_width}, int({least_width} * height / width)
""",
    "pad": """\
    if width * {height} > {width} * height:
        return {width}, max(1, round(height / width * {width}))
    return max(1, round(width / height * {height})), {height}
""",
    "stretch": "    return {width}, {height}\n",
}
READING_LINES: Final = """\
def read_image(path):  # {what}
    file = Image.open(path)
{reduce}    file.load()
    image = ImageOps.exif_transpose(file)
    if image.has_transparency_data:  # its transparent pixels show this colour
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, {color}), image)
    image = image.convert("RGB")
{fit}    return image{gray}


image = read_image("photo.jpg")"""
# A JPEG is decoded at a reduced size; an image that is no square may be turned by a quarter afterwards.
REDUCE_LINE: Final = '    file.draft("RGB", scaled_size(*file.size))\n'
REDUCE_TURNED_LINES: Final = """\
    is_quarter_turn = file.getexif().get(274) in (5, 6, 7, 8)
    file.draft("RGB", scaled_size(*file.size[::-1])[::-1] if is_quarter_turn else scaled_size(*file.size))
"""
FIT_LINES: Final[Mapping[str, str]] = {
    "whole crop": """\
    width = max(1, min(image.width, round(image.height * {width} / {height})))
    height = max(1, min(image.height, round(image.width * {height} / {width})))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    image = image.resize(({width}, {height}), {resampling}, (left, top, left + width, top + height))
""",
    "crop": """\
    image = image.resize(scaled_size(*image.size), {resampling})
    left, top = round((image.width - {width}) / 2), round((image.height - {height}) / 2)
    image = image.crop((left, top, left + {width}, top + {height}))
""",
    "pad": """\
    scaled = image.resize(scaled_size(*image.size), {resampling})
    image = Image.new("RGB", ({width}, {height}), {color})
    image.paste(scaled, (round(({width} - scaled.width) / 2), round(({height} - scaled.height) / 2)))
""",
    "stretch": "    image = image.resize(({width}, {height}), {resampling})\n",
}
FIT_WORDS: Final[Mapping[FitName, str]] = {
    "crop": "the central part",
    "pad": "the whole image and a border",
    "stretch": "the whole image",
}


def _image_lines(spec: InputSpec) -> list[str]:
    """Lines that assign a Pillow image of the network's size and channels to `image`."""
    preprocessing, (height, width) = spec.preprocessing, spec.shape.size
    least_width, least_height = decode.covered_size((width, height), preprocessing)
    values = {
        "width": width,
        "height": height,
        "least_width": least_width,
        "least_height": least_height,
        "resampling": f"Image.Resampling.{preprocessing.interpolation.upper()}",
        "color": decode.fill_color(preprocessing, 3),
    }
    cuts_first = preprocessing.fit == "crop" and preprocessing.crop_ratio == 1
    reduces = preprocessing.decode != "exact" and spec.origin != "pictures"
    reduce_lines = REDUCE_LINE if width == height else REDUCE_TURNED_LINES
    from_arrays = inputs.array_data_warning(spec) is not None
    reading = READING_LINES.format(
        what="not known of the training's arrays"
        if from_arrays
        else f"{FIT_WORDS[preprocessing.fit]}, scaled as in the training",
        reduce=reduce_lines if reduces else "",
        fit=FIT_LINES["whole crop" if cuts_first else preprocessing.fit].format(**values),
        color=values["color"],
        gray='.convert("L")' if spec.shape.channels == 1 else "",
    )
    scaled_size = f"{SCALED_SIZE_LINE}{SCALED_SIZES[preprocessing.fit].format(**values)}\n\n"
    return ["", *(scaled_size if "scaled_size(" in reading else "").splitlines(), *reading.splitlines()]


def onnx_example(spec: InputSpec, folder: str) -> str:
    """Lines of Python that print what the ONNX file says of one image."""
    if takes_images(spec):
        imports = ["from PIL import Image, ImageOps"]
        stored = ", ".join(map(str, spec.shape.stored))
        mean, std = (_numpy_numbers(numbers) for numbers in (spec.preprocessing.mean, spec.preprocessing.std))
        images = [
            *_image_lines(spec),
            f"pixels = numpy.asarray(image, numpy.float32).reshape({stored}) / 255",
            f"images = ((pixels - {mean}) / {std}).transpose(2, 0, 1)[None]",
        ]
    else:
        imports = []
        images = [
            f"images = numpy.zeros({[1, *spec.shape.input]}, 'float32')  # put yours here: {_describe_numbers(spec)}"
        ]
    return "\n".join(
        [
            "import json",
            "import numpy",
            "import onnxruntime",
            *imports,
            "",
            *images,
            f"session = onnxruntime.InferenceSession({path_literal(folder, 'model.onnx')})",
            "metadata = session.get_modelmeta().custom_metadata_map",
            "description = {name: json.loads(text) for name, text in metadata.items()}",
            'outputs = session.run(["logits"], {"images": images})[0][0]',
            TASKS[spec.task].numpy_example,
        ]
    )


def _numpy_numbers(numbers: Sequence[float]) -> str:
    """One number, or an array of one for each channel, as Python code."""
    return f"{numbers[0]!r}" if len(numbers) == 1 else f"numpy.float32({[*numbers]})"


def _describe_numbers(spec: InputSpec) -> str:
    """How the network's input is made of the training's numbers."""
    return (
        f"given as {_describe_normalization(spec.preprocessing)}" if spec.bytes_ else "floats as in the training's data"
    )


def _describe_normalization(preprocessing: Preprocessing) -> str:
    """`(byte - 127.5) / 63.75`; with means for each channel `(byte / 255 - [...]) / [...]`."""
    mean, std = preprocessing.mean, preprocessing.std
    if len(mean) == len(std) == 1:
        return f"(byte - {255 * mean[0]:g}) / {255 * std[0]:g}"
    return f"(byte / 255 - {[*mean]}) / {[*std]}"


def _model_rows(about: ModelFacts) -> dict[str, str]:
    numbers = sum(tensor.numel() for tensor in about.tensors.values())
    spec = about.input_spec
    args = ", ".join(redact_words(f"{name}={value}" for name, value in about.config.model.args.items()))
    return {
        "network": about.config.model.name + (f" ({args})" if args else ""),
        "takes": f"{spec.shape}, "
        + (
            f"bytes 0 to 255, given as {_describe_normalization(spec.preprocessing)}"
            if spec.bytes_
            else "floats as they are"
        ),
        "gives": _describe_outputs(spec),
        "weights": f"{numbers:,} numbers in {pluralize(len(about.tensors), 'tensor')}"
        + (", averaged over steps (train.ema_decay)" if about.averaged else ""),
    }


def _describe_outputs(spec: InputSpec) -> str:
    """What the outputs mean."""
    if spec.task == MULTI_LABEL:
        return f"one logit for each of {pluralize(len(spec.classes), 'label')}: its sigmoid is the label's probability"
    if spec.target is not None:
        return f"one number: {spec.classes[0]} = number x {spec.target.std!r} + {spec.target.mean!r}"
    return f"one score for each of {pluralize(len(spec.classes), 'class')}"


def _cautions(about: ModelFacts) -> Iterator[str]:
    """What a user of the model has to know first: of a run that diverged, of arrays, and of code that is not there."""
    name, warning = about.config.model.name, inputs.array_data_warning(about.input_spec)
    if about.caution:
        yield about.caution
    if warning and takes_images(about.input_spec):
        yield f"{warning[0].upper()}{warning[1:]}."
    if schema.is_factory(name):
        yield CUSTOM_CODE_TEXT.format(module=name.partition(":")[0].replace(".", "/"))


def _data_rows(about: ModelFacts) -> dict[str, str]:
    data = submapping(about.state, "data")
    counted = {
        f"{name} samples": f"{data[key]:,}"
        for key, name in resume_rules.SPLIT_NAMES.items()
        if isinstance(data.get(key), int)
    }
    noun = TASKS[about.input_spec.task].noun
    return {"name": about.config.data.name, **counted, noun: ", ".join(about.input_spec.classes)}


def _training_rows(about: ModelFacts) -> dict[str, str]:
    config, training = about.config, submapping(about.recorded, "training")
    world, steps_per_epoch = about.state.get("world_size"), training.get("steps_per_epoch")
    optim = config.optim
    resolved = checks.resolve_learning_rate(config)  # earlier versions recorded `auto`
    learning_rate = schedule.peak_learning_rate(resolved, config.train.global_batch_size)
    rows = {
        "steps": f"{about.step:,}",
        "epochs": f"{about.step / steps_per_epoch:g}"
        if isinstance(steps_per_epoch, int) and steps_per_epoch > 0
        else None,
        "global batch": f"{config.train.global_batch_size:,}",
        "optimizer": f"{optim.name}, learning rate {learning_rate:g}, {optim.schedule}",
        "precision": about.precision,
        "world": pluralize(world, "rank") if isinstance(world, int) else None,
        "device": str(training["device"]) if "device" in training else None,
        "seed": str(config.run.seed),
        "started from": config.model.weights,
    }
    return {name: value for name, value in rows.items() if value is not None}


def _metric_blocks(about: ModelFacts) -> Iterator[DescriptionList | Table | Paragraph]:
    if about.test_result is not None and about.final is not None:
        yield DescriptionList(rows={"test": about.final.describe(about.config.eval.metric)})
    result, run_result, classes = about.result, about.run_result, about.input_spec.classes
    if result is None or run_result is None:
        text = CHANGED_TEXT.format(", ".join(about.changed)) if about.changed else FLIPPED_TEXT
        yield Paragraph(text=text if run_result is not None else NOT_MEASURED_TEXT)
        return
    metrics = results.metric_rows(result, classes)
    if about.flipped:
        first = next(iter(results.metric_rows(run_result, classes).values()))
        metrics["with eval.flip"] = f"{first}: the mean of the outputs for each image and its mirror image"
    if about.precision in ("bf16", "fp16"):
        metrics["measured in"] = f"{about.precision}; the files compute in fp32"
    yield DescriptionList(rows=metrics)
    if result.average_precision is not None and result.thresholds is not None:
        by_label = zip(about.input_spec.classes, result.average_precision, result.thresholds, strict=False)
        rows = [
            [name, "-" if value is None else f"{value:.1%}", f"{threshold:.3g}"] for name, value, threshold in by_label
        ]
        yield Table(head=["label", "average precision", "threshold"], rows=rows)
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
