"""A trained network predicts the class, the labels or the number of image files, one prediction for each image.

The model of a run computes as in its evaluation: with EMA weights if there are any, and in the
run's precision. An exported network computes in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, World, dump_json, num_usable_cores
from train.config.schema import RunConfig
from train.data.shape import Shape
from train.distributed import runtime
from train.distributed.device import allow_tf32, choose_device
from train.evaluation.scores import probabilities_of
from train.evaluation.validator import average_outputs, explain_out_of_memory, max_batch_size
from train.files import one_line
from train.inference import checkpoints, csv_table, evaluate, export, inputs
from train.inference.checkpoints import ChosenCheckpoint
from train.inference.csv_table import Cell
from train.inference.inputs import InputSpec
from train.tasks import TASKS

LOOPBACK_ADDRESS: Final = "127.0.0.1"
SINGLE_PROCESS_WORLD: Final = World(
    rank=0,
    local_rank=0,
    world_size=1,
    local_world_size=1,
    node_rank=0,
    num_nodes=1,
    master_addr=LOOPBACK_ADDRESS,
    master_port=0,
)


class Prediction(Protocol):
    """What a model says of one image."""

    @property
    def path(self) -> Path:
        """The image file."""

    def cells(self, top: int, classes: Sequence[str]) -> dict[str, Cell]:
        """The prediction as the cells of a table, by column."""

    def strongest(self) -> str:
        """The highest output in words, for people."""

    def as_text(self) -> str:
        """The path and the prediction, separated by tabs."""

    def as_json(self, *, ascii_: bool = False) -> str:
        """One JSON object, see `dump_json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPrediction:
    """The likeliest classes of one image and their probabilities, in falling order."""

    path: Path
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    def as_text(self) -> str:
        """Path, class and probability, separated by tabs; further classes follow."""
        pairs = zip(self.classes, self.probabilities, strict=True)
        return "\t".join([one_line(str(self.path)), *(f"{one_line(name)}\t{share:.4f}" for name, share in pairs)])

    def strongest(self) -> str:
        """The likeliest class and its probability."""
        return f"{self.classes[0]} {self.probabilities[0]:.1%}"

    def cells(self, top: int, classes: Sequence[str]) -> dict[str, Cell]:
        """The `top` likeliest classes, then the probability of each of `classes`, which the prediction must hold."""
        pairs, row = list(zip(self.classes, self.probabilities, strict=True)), dict[str, Cell]()
        for number, (name, probability) in enumerate(pairs[:top], start=1):
            suffix = f" {number}" if number > 1 else ""
            row[f"prediction{suffix}"] = csv_table.text_cell(name)
            row[f"confidence{suffix}"] = csv_table.number_cell(probability)
        by_class = dict(pairs)
        return row | {f"probability of {name}": csv_table.number_cell(by_class[name]) for name in classes}

    def as_json(self, *, ascii_: bool = False) -> str:
        """One JSON object, see `dump_json`."""
        pairs = zip(self.classes, self.probabilities, strict=True)
        likeliest = [{"class": name, "probability": share} for name, share in pairs]
        return dump_json({"path": str(self.path), **likeliest[0], "top": likeliest}, ensure_ascii=ascii_)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPrediction:
    """The probability of each label of one image, and the thresholds from which on the image has the label."""

    path: Path
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    thresholds: tuple[float, ...]

    @property
    def likely(self) -> list[tuple[str, float]]:
        """The labels that the image has, and their probabilities, in falling order."""
        rows = zip(self.labels, self.probabilities, self.thresholds, strict=True)
        likely = [(name, probability) for name, probability, threshold in rows if probability >= threshold]
        return sorted(likely, key=lambda pair: -pair[1])

    def as_text(self) -> str:
        """Path, then each label with its probability, separated by tabs; only the path for an image without one."""
        pairs = (f"{one_line(name)}\t{probability:.4f}" for name, probability in self.likely)
        return "\t".join([one_line(str(self.path)), *pairs])

    def strongest(self) -> str:
        """The label with the highest probability, also below its threshold."""
        probability, name = max(zip(self.probabilities, self.labels, strict=True), key=lambda pair: pair[0])
        return f"{name} {probability:.1%}"

    def cells(self, top: int, classes: Sequence[str]) -> dict[str, Cell]:
        """The labels that the image has, with bars between them, then the probability of every label."""
        labels = csv_table.text_cell(csv_table.LABEL_SEPARATOR.join(name for name, _ in self.likely))
        pairs = zip(self.labels, self.probabilities, strict=True)
        return {"labels": labels} | {
            f"probability of {name}": csv_table.number_cell(probability) for name, probability in pairs
        }

    def as_json(self, *, ascii_: bool = False) -> str:
        """One JSON object with the labels, and the probability of every label; see `dump_json`."""
        probabilities = dict(zip(self.labels, self.probabilities, strict=True))
        labels = [name for name, _ in self.likely]
        return dump_json(
            {"path": str(self.path), "labels": labels, "probabilities": probabilities}, ensure_ascii=ascii_
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberPrediction:
    """The number of one image, in the unit of the training's labels. name: of the label column."""

    path: Path
    name: str
    value: float

    def as_text(self) -> str:
        """Path and number, separated by a tab."""
        return f"{one_line(str(self.path))}\t{self.value:.6g}"

    def strongest(self) -> str:
        """The number and its name."""
        return f"{self.name} {self.value:.4g}"

    def cells(self, top: int, classes: Sequence[str]) -> dict[str, Cell]:
        """The number, in the column of its name."""
        return {csv_table.text_cell(self.name): csv_table.number_cell(self.value)}

    def as_json(self, *, ascii_: bool = False) -> str:
        """One JSON object, see `dump_json`."""
        return dump_json({"path": str(self.path), "name": self.name, "value": self.value}, ensure_ascii=ascii_)


def encode_table(predictions: Sequence[Prediction], top: int, classes: Sequence[str] = ()) -> bytes:
    """The CSV table of `train predict --csv`: a row for each image.

    top, classes: as in `ClassPrediction.cells`, which other predictions ignore.
    """
    rows = [
        {"path": csv_table.path_cell(str(prediction.path)), **prediction.cells(top, classes)}
        for prediction in predictions
    ]
    return csv_table.encode([*rows[0]] if rows else ["path"], [[*row.values()] for row in rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceModel:
    """A model on its device, in evaluation mode, and its input.

    spec: of its input and outputs. warning: about its predictions, if any. draft: as `decode.decode_image`.
    batch_size: images in one batch. flip: average over each image and its mirror image (eval.flip).
    """

    network: nn.Module
    spec: InputSpec
    warning: str | None
    draft: bool
    device: torch.device
    batch_size: int
    flip: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return self.spec.classes

    @property
    def shape(self) -> Shape:
        """Of one image."""
        return self.spec.shape


def prepare_from_checkpoint(
    config: RunConfig, chosen: ChosenCheckpoint, environ: MutableMapping[str, str], images: int
) -> InferenceModel:
    """The model of a checkpoint, as `train eval` evaluates it.

    It has the EMA weights if there are any, and the run's precision. Changes `environ`, as
    `runtime.start`.

    Raises:
        Failure: DATA for a damaged checkpoint, USAGE for a model that takes no image files, NODE
            without the GPU.
    """
    spec = inputs.build_input_spec(config, checkpoints.read_state(chosen))
    inputs.refuse_image_files(spec)
    weights = evaluate.load_weights(chosen)
    rank_runtime = runtime.start(config, SINGLE_PROCESS_WORLD, environ, accumulation=1)
    network = evaluate.build_model(config, spec.sets, weights, rank_runtime)
    return InferenceModel(
        network=network.eval(),
        spec=spec,
        warning=inputs.array_data_warning(spec),
        draft=spec.origin != "pictures",
        device=rank_runtime.device,
        batch_size=max_batch_size(images, config.eval.batch_size),
        flip=config.eval.flip,
    )


def prepare_from_export(
    folder: Path,
    device: str,
    images: int,
    factory: Callable[..., nn.Module] | None = None,
    batch_size: int | Literal["auto"] = "auto",
) -> InferenceModel:
    """An exported model, in fp32. factory: as `load_exported`.

    Raises Failure as `load_exported` and `prepare_from_checkpoint`.
    """
    model, torch_device = export.load_exported(folder, factory), choose_device(device, 0)
    inputs.refuse_image_files(model.input_spec)
    allow_tf32(False)
    return InferenceModel(
        network=model.network.to(torch_device),
        spec=model.input_spec,
        warning=" ".join(filter(None, (model.caution, inputs.array_data_warning(model.input_spec)))) or None,
        draft=model.input_spec.origin != "pictures",
        device=torch_device,
        batch_size=max_batch_size(images, batch_size),
    )


# Called with a batch, and with the path and the prediction of each of its images.
Explain = Callable[[Tensor, Sequence[Path], Sequence[Prediction | None]], None]


def explain_into(model: InferenceModel, folder: Path) -> Explain:
    """What writes a picture with a heat map for each image into a new or empty folder.

    Raises:
        Failure: as `explanation.refuse_network_without_map`; OUTPUT for a folder that holds files or cannot be written.
    """
    from train.inference import explanation  # matplotlib

    example = torch.zeros((1, *model.shape.input), device=model.device)
    explanation.refuse_network_without_map(model.network, example, explanation.EXPLAIN_OPTION)
    explanation.prepare_folder(folder)
    writer = explanation.ExplanationWriter(
        folder=folder, preprocessing=model.spec.preprocessing, bytes_=model.spec.bytes_
    )

    def explain(batch: Tensor, paths: Sequence[Path], predictions: Sequence[Prediction | None]) -> None:
        rows = [row for row, prediction in enumerate(predictions) if prediction is not None]
        if not rows:
            return
        images = batch[rows]
        with explain_out_of_memory(len(images)):
            heat_maps = explanation.compute_heat_maps(model.network, images.to(model.device))
        captions = [prediction.strongest() for prediction in predictions if prediction is not None]
        writer.write(images, heat_maps, [paths[row] for row in rows], captions)

    return explain


def predict_images(
    model: InferenceModel,
    paths: Sequence[Path],
    top: int,
    bad: Callable[[str], None],
    explain: Explain | None = None,
) -> Iterator[Prediction]:
    """Yield a prediction for each image, in their order.

    `bad` is called with a message for each bad image. explain: called before a batch's predictions are yielded.

    Raises:
        Failure: DATA at the end if there were bad images; RESOURCE if a batch does not fit into the
            GPU's memory.
    """
    failed = 0
    with ThreadPoolExecutor(num_usable_cores()) as threads:
        for start in range(0, len(paths), model.batch_size):
            batch_paths = paths[start : start + model.batch_size]
            batch, reasons = inputs.read_batch(
                batch_paths, model.shape, threads, model.spec.preprocessing, draft=model.draft
            )
            readable = [path for path, reason in zip(batch_paths, reasons, strict=True) if reason is None]
            predictions_of = TASKS[model.spec.task].load("predictions")
            of_batch: list[Prediction | None] = predictions_of(model.spec, _compute_logits(model, batch), readable, top)
            if explain is not None:
                explain(batch, readable, of_batch)
            predictions = iter(of_batch)
            for path, reason in zip(batch_paths, reasons, strict=True):
                result = next(predictions) if reason is None else reason
                if isinstance(result, Failure):
                    failed += 1
                    bad(f"{one_line(result.found or str(path))}")
                elif result is None:
                    failed += 1
                    bad(f"{one_line(str(path))}: the network's scores are not finite numbers")
                else:
                    yield result
    if failed:
        raise _incomplete_failure(failed, len(paths))


def _compute_logits(model: InferenceModel, batch: Tensor) -> Tensor:
    """The logits, float32 [n, classes], on the CPU."""
    if not len(batch):
        return torch.empty((0, len(model.classes)))
    with torch.no_grad(), explain_out_of_memory(len(batch)):
        images = batch.to(model.device)
        scores: Tensor = model.network(images)
        if model.flip:
            scores = average_outputs(scores, model.network(images.flip(-1)))
        return scores.float().cpu()


def _top_classes(scores: Tensor, top: int) -> list[list[tuple[int, float]]]:
    """For each row the `top` likeliest classes and their probabilities; empty if a score is not finite.

    Of equal scores the first class wins, as in the evaluation.
    """
    probabilities = scores.double().softmax(dim=1)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :top]
    finite = probabilities.isfinite().all(dim=1).tolist()
    rows = zip(order.tolist(), probabilities.gather(1, order).tolist(), finite, strict=True)
    return [
        list(zip(classes, class_probabilities, strict=True)) if is_finite else []
        for classes, class_probabilities, is_finite in rows
    ]


def predict_classes(spec: InputSpec, outputs: Tensor, paths: Sequence[Path], top: int) -> list[ClassPrediction | None]:
    """The `top` likeliest classes of each row of logits; None for one with a number that is not finite."""
    predictions: list[ClassPrediction | None] = []
    for path, likeliest in zip(paths, _top_classes(outputs, top), strict=True):
        names = tuple(spec.classes[index] for index, _ in likeliest)
        probabilities = tuple(probability for _, probability in likeliest)
        prediction = ClassPrediction(path=path, classes=names, probabilities=probabilities)
        predictions.append(prediction if likeliest else None)
    return predictions


def predict_labels(spec: InputSpec, outputs: Tensor, paths: Sequence[Path], top: int) -> list[LabelPrediction | None]:
    """The labels of each row of logits whose probability is at least their threshold; `top` does not act."""
    assert spec.thresholds is not None  # `inputs.build_input_spec` sets them for this task
    finite = outputs.isfinite().all(dim=1).tolist()
    rows = zip(paths, probabilities_of(outputs).tolist(), finite, strict=True)
    return [
        LabelPrediction(path=path, labels=spec.classes, probabilities=tuple(row), thresholds=spec.thresholds)
        if is_finite
        else None
        for path, row, is_finite in rows
    ]


def predict_numbers(spec: InputSpec, outputs: Tensor, paths: Sequence[Path], top: int) -> list[NumberPrediction | None]:
    """The number of each row, in the unit of the training's labels; `top` does not act."""
    assert spec.target is not None  # `checkpoints.recorded_task` refuses numbers without it
    numbers = (outputs.double().flatten() * spec.target.std + spec.target.mean).tolist()
    return [
        NumberPrediction(path=path, name=spec.classes[0], value=number) if math.isfinite(number) else None
        for path, number in zip(paths, numbers, strict=True)
    ]


def _incomplete_failure(failed: int, count: int) -> Failure:
    have, they_are, them = ("has", "it is", "it") if failed == 1 else ("have", "they are", "them")
    return Failure(
        f"{failed} of {count} image{'s' * (count != 1)} {have} no answer: {they_are} named above",
        fix=f"replace {them} or leave {them} out; the lines of the others are complete",
        code=ExitCode.DATA,
    )
