"""A trained network predicts the classes of image files, one prediction for each image.

The network of a run computes as in its evaluation: averaged weights where there are any, and the
run's precision. An exported network computes in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, World, num_usable_cores
from train.config.schema import RunConfig
from train.data.shape import Shape
from train.distributed import runtime
from train.distributed.device import allow_tf32, choose_device
from train.evaluation.evaluate import explain_out_of_memory, max_batch_size
from train.files import one_line
from train.inference import evaluate, export, inputs
from train.inference.checkpoints import ChosenCheckpoint
from train.inference.prediction import Prediction

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


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceModel:
    """A network on its device, in evaluation mode, and what it takes. size: images in one batch. doubt: what
    the user should know of its answers. draft: as `decode.decode_image`."""

    network: nn.Module
    classes: tuple[str, ...]
    shape: Shape
    doubt: str | None
    draft: bool
    device: torch.device
    size: int


def resolve_device(device: str) -> str:
    """cpu or cuda, of auto, cpu or cuda."""
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def prepare_from_checkpoint(
    config: RunConfig, chosen: ChosenCheckpoint, environ: MutableMapping[str, str], images: int
) -> InferenceModel:
    """The network as `train eval` measures it: averaged weights where there are, the run's precision.

    Changes `environ`, as `runtime.start`.

    Raises:
        Failure: DATA for a damaged checkpoint, USAGE for a network that takes no image files, NODE without the GPU.
    """
    taken = inputs.build_input_spec(config, inputs.read_checkpoint_state(chosen))
    inputs.refuse_image_files(taken)
    weights = evaluate.load_weights(chosen)
    ready = runtime.start(config, SINGLE_PROCESS_WORLD, environ, accumulation=1)
    network = evaluate.build_model(config, taken.sets, weights, ready)
    return InferenceModel(
        network=network.eval(),
        classes=taken.classes,
        shape=taken.shape,
        doubt=inputs.array_data_warning(taken),
        draft=taken.made != "pictures",
        device=ready.device,
        size=max_batch_size(images, config.eval.batch_size),
    )


def prepare_from_export(
    folder: Path, device: str, images: int, factory: Callable[..., nn.Module] | None = None
) -> InferenceModel:
    """A network that was handed on, in fp32. factory, Raises: as `load_exported`, and as `prepare_from_checkpoint`."""
    model, place = export.load_exported(folder, factory), choose_device(device, 0)
    inputs.refuse_image_files(model.takes)
    allow_tf32(False)
    return InferenceModel(
        network=model.network.to(place),
        classes=model.classes,
        shape=model.shape,
        doubt=inputs.array_data_warning(model.takes),
        draft=model.takes.made != "pictures",
        device=place,
        size=max_batch_size(images, "auto"),
    )


def predict_images(
    ready: InferenceModel, paths: Sequence[Path], top: int, bad: Callable[[str], None]
) -> Iterator[Prediction]:
    """What the network says of each image, in their order; `bad` is told of those that it cannot be asked about.

    Raises:
        Failure: DATA at the end, where there were such; RESOURCE where a batch does not fit the GPU.
    """
    failed = 0
    with ThreadPoolExecutor(num_usable_cores()) as threads:
        for first in range(0, len(paths), ready.size):
            part = paths[first : first + ready.size]
            batch, reasons = inputs.read_batch(part, ready.shape, threads, draft=ready.draft)
            told = iter(_top_classes(_compute_logits(ready, batch), top))
            for path, reason in zip(part, reasons, strict=True):
                found = next(told) if reason is None else reason
                if isinstance(found, Failure):
                    failed += 1
                    bad(f"{one_line(found.found or str(path))}")
                elif not found:
                    failed += 1
                    bad(f"{one_line(str(path))}: the network's scores are not finite numbers")
                else:
                    yield _make_prediction(path, found, ready.classes)
    if failed:
        raise _incomplete_failure(failed, len(paths))


def _compute_logits(ready: InferenceModel, batch: Tensor) -> Tensor:
    """float32 [n, classes] on the CPU."""
    if not len(batch):
        return torch.empty((0, len(ready.classes)))
    with torch.no_grad(), explain_out_of_memory(len(batch)):
        scores: Tensor = ready.network(batch.to(ready.device))
        return scores.float().cpu()


def _top_classes(scores: Tensor, top: int) -> list[list[tuple[int, float]]]:
    """For each row the first `top` classes and their probabilities; nothing where the scores are not numbers.

    Of equal scores the first class is taken, as the evaluation does.
    """
    shares = scores.double().softmax(dim=1)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :top]
    fine = shares.isfinite().all(dim=1).tolist()
    rows = zip(order.tolist(), shares.gather(1, order).tolist(), fine, strict=True)
    return [list(zip(places, values, strict=True)) if good else [] for places, values, good in rows]


def _make_prediction(path: Path, found: list[tuple[int, float]], classes: tuple[str, ...]) -> Prediction:
    names, shares = tuple(classes[place] for place, _ in found), tuple(share for _, share in found)
    return Prediction(path=path, classes=names, probabilities=shares)


def _incomplete_failure(failed: int, count: int) -> Failure:
    have, named, them = ("has", "it is", "it") if failed == 1 else ("have", "they are", "them")
    return Failure(
        f"{failed} of {count} image{'s' * (count != 1)} {have} no answer: {named} named above",
        fix=f"replace {them} or leave {them} out; the lines of the others are complete",
        code=ExitCode.DATA,
    )
