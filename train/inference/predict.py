"""A trained network predicts the class, the labels or the number of image files, one prediction for each image.

The model of a run computes as in its evaluation: with EMA weights if there are any, and in the
run's precision. An exported network computes in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, World, num_usable_cores
from train.checkpoint import store
from train.checkpoint.store import CommittedCheckpoint
from train.config.schema import RunConfig
from train.distributed import runtime
from train.distributed.device import allow_tf32, choose_device
from train.evaluation.validator import average_outputs, explain_out_of_memory, max_batch_size
from train.files import one_line
from train.inference import csv_table, evaluate, export, inputs
from train.inference.inputs import InputSpec
from train.tasks.base import Prediction
from train.tasks.registry import open_task

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


def encode_table(predictions: Sequence[Prediction]) -> bytes:
    """The CSV table of `train predict --csv`: a row for each image."""
    rows = [{"path": csv_table.path_cell(str(prediction.path)), **prediction.cells} for prediction in predictions]
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


def prepare_from_checkpoint(
    config: RunConfig, chosen: CommittedCheckpoint, environ: MutableMapping[str, str], images: int
) -> InferenceModel:
    """The model of a checkpoint, as `train eval` evaluates it.

    It has the EMA weights if there are any, and the run's precision. Changes `environ`, as
    `runtime.start`.

    Raises:
        Failure: DATA for a damaged checkpoint, USAGE for a model that takes no image files, NODE
            without the GPU.
    """
    spec = inputs.build_input_spec(config, store.read_state(chosen))
    inputs.refuse_image_files(spec)
    weights = evaluate.load_weights(chosen)
    rank_runtime = runtime.start(config, SINGLE_PROCESS_WORLD, environ)
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
    inputs.refuse_image_files(model)
    allow_tf32(False)
    return InferenceModel(
        network=model.network.to(torch_device),
        spec=model,
        warning=" ".join(filter(None, (model.caution, inputs.array_data_warning(model)))) or None,
        draft=model.origin != "pictures",
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

    example = torch.zeros((1, *model.spec.shape.input), device=model.device)
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
        captions = [prediction.strongest for prediction in predictions if prediction is not None]
        writer.write(images, heat_maps, [paths[row] for row in rows], captions)

    return explain


def predict_images(
    model: InferenceModel,
    paths: Sequence[Path],
    top: int,
    bad: Callable[[str], None],
    explain: Explain | None = None,
    *,
    all_classes: bool = False,
) -> Iterator[Prediction]:
    """Yield a prediction for each image, in their order. top, all_classes: as in `Task.predict`.

    `bad` is called with a message for each bad image. explain: called before a batch's predictions are yielded.

    Raises:
        Failure: DATA at the end if there were bad images; RESOURCE if a batch does not fit into the
            GPU's memory.
    """
    failed, task = 0, open_task(model.spec.task, model.spec.classes, model.spec.target)
    with ThreadPoolExecutor(num_usable_cores()) as threads:
        for start in range(0, len(paths), model.batch_size):
            batch_paths = paths[start : start + model.batch_size]
            batch, reasons = inputs.read_batch(
                batch_paths, model.spec.shape, threads, model.spec.preprocessing, draft=model.draft
            )
            readable = [path for path, reason in zip(batch_paths, reasons, strict=True) if reason is None]
            outputs = _compute_logits(model, batch)
            of_batch = task.predict(outputs, readable, model.spec.thresholds, top=top, all_classes=all_classes)
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
        return torch.empty((0, len(model.spec.classes)))
    with torch.no_grad(), explain_out_of_memory(len(batch)):
        images = batch.to(model.device)
        scores: Tensor = model.network(images)
        if model.flip:
            scores = average_outputs(scores, model.network(images.flip(-1)))
        return scores.float().cpu()


def _incomplete_failure(failed: int, count: int) -> Failure:
    have, they_are, them = ("has", "it is", "it") if failed == 1 else ("have", "they are", "them")
    return Failure(
        f"{failed} of {count} image{'s' * (count != 1)} {have} no answer: {they_are} named above",
        fix=f"replace {them} or leave {them} out; the lines of the others are complete",
        code=ExitCode.DATA,
    )
