"""One rank loads a checkpoint and evaluates it on its share of the validation images.

The metrics do not depend on the number of ranks, so they are those of the training. All images can
be evaluated instead of the validation images. A test set may lack classes of the training: its
images get the numbers that their classes had there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, Heartbeat, World
from train.checkpoint import format
from train.checkpoint.format import CommittedCheckpoint
from train.config.schema import RunConfig
from train.data import path_list, registry, statistics
from train.data.image_folder import ImageFileSource
from train.data.loader import BatchLoader, open_loader
from train.data.splits import DataSplits, SampleIndices, SampleSource
from train.distributed import runtime, shared_memory
from train.distributed.runtime import Runtime
from train.evaluation.evaluate import Evaluation, evaluate, explain_out_of_memory, max_batch_size, rank_batches
from train.inference import checkpoints
from train.inference.checkpoints import ChosenCheckpoint, DatasetFacts, describe_place_in_run
from train.inference.evaluation_report import EMA_GROUP, MODEL_GROUP, EvaluationReport
from train.models import registry as model_registry


def map_to_training_classes(sets: DataSplits, classes: Sequence[str]) -> DataSplits:
    """The same images among the training's `classes`, where they are of some of these; else `sets` as it is.

    Class folders alone have names that somebody chose: elsewhere a class is a number.
    """
    training, validation = sets.training, sets.validation
    if not (
        isinstance(training, ImageFileSource)
        and isinstance(validation, ImageFileSource)
        and set(sets.classes) < set(classes)
    ):
        return sets
    there = {name: number for number, name in enumerate(classes)}
    numbers = torch.tensor([there[name] for name in sets.classes])
    return replace(
        sets,
        training=replace(training, labels=numbers[training.labels]),
        validation=replace(validation, labels=numbers[validation.labels]),
        classes=tuple(classes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatSource:
    """The samples of one source, and behind them those of another. labels: int64 [count] of all."""

    first: SampleSource
    second: SampleSource
    labels: Tensor

    def read(self, samples: SampleIndices) -> Tensor:
        """As `Source.read`; each source is asked for its own."""
        count = len(self.first.labels)
        early = samples < count
        if early.all():
            return self.first.read(samples)
        if not early.any():
            return self.second.read(samples - count)
        mine, theirs = self.first.read(samples[early]), self.second.read(samples[~early] - count)
        read = torch.empty((len(samples), *mine.shape[1:]), dtype=mine.dtype)
        read[torch.from_numpy(early)], read[torch.from_numpy(~early)] = mine, theirs
        return read


def use_all_for_validation(sets: DataSplits) -> DataSplits:
    """The same data with all of it as validation images, what is trained on first."""
    return replace(sets, validation=_concat_sources(sets.training, sets.validation))


def _concat_sources(first: SampleSource, second: SampleSource) -> SampleSource:
    if not len(second.labels):
        return first
    labels = torch.cat([first.labels, second.labels])
    if isinstance(first, ImageFileSource) and isinstance(
        second, ImageFileSource
    ):  # so that an image that cannot be read has one number
        every = path_list.concatenate_paths(
            path_list.as_packed_paths(first.paths), path_list.as_packed_paths(second.paths)
        )
        return ImageFileSource(every, labels, first.size)
    return ConcatSource(first=first, second=second, labels=labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWeights:
    """A model's tensors by name; averaged: over steps (train.ema_decay)."""

    tensors: Mapping[str, Tensor]
    averaged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationData:
    """What of the data is measured, as the validation images of `sets`. words: the same for people. all: every image of
    it. notes: what makes the numbers other than they look."""

    sets: DataSplits
    words: str
    all: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptySource:
    """The training side: an evaluation does not read it."""

    labels: Tensor
    stored: tuple[int, ...]

    def read(self, samples: SampleIndices) -> Tensor:
        """[0, *stored]."""
        return torch.empty((0, *self.stored), dtype=torch.uint8)


def evaluate_on_rank(
    config: RunConfig,
    chosen: ChosenCheckpoint,
    world: World,
    environ: MutableMapping[str, str],
    *,
    as_json: bool,
    all_: bool = False,
    pulse: Heartbeat | None = None,
) -> int:
    """Measure as one rank; rank 0 writes the result to stdout. Returns the exit code (OK). all_: every image of the
    data, not the validation images alone.

    Raises:
        Failure: whatever keeps the checkpoint from being measured.
    """
    ready = runtime.start(config, world, environ, accumulation=1)
    chosen = ready.shared(lambda: chosen)  # tasks look at different moments: a training may go on meanwhile
    pulse = pulse or Heartbeat()
    pulse.beat("data")
    config = replace(config, data=replace(config.data, cache=None))  # it would be filled with the training images too
    part = open_evaluation_data(config, chosen, ready, all_=all_)
    sets = part.sets
    for note in part.notes if ready.is_main else ():
        sys.stderr.write(f"WARNING: {note}\n")
    weights = load_weights(chosen)
    net = build_model(config, sets, weights, ready)
    validation = len(sets.validation.labels)
    with explain_out_of_memory(max_batch_size(validation, config.eval.batch_size)):
        loader = open_validation_loader(config, sets, ready, pulse)
        mine = rank_batches(validation, config.eval.batch_size, world)
        measured = evaluate(net, pulse.each("evaluation", loader.evaluate(mine)), ready, classes=len(sets.classes))
    if ready.is_main:
        verdict = _build_report(config, chosen, part, ready, measured, averaged=weights.averaged, loader=loader.kind)
        sys.stdout.write((verdict.as_json() if as_json else verdict.as_text()) + "\n")
        sys.stdout.flush()
    ready.barrier()
    ready.close()
    return int(ExitCode.OK)


def open_evaluation_data(config: RunConfig, chosen: ChosenCheckpoint, ready: Runtime, *, all_: bool) -> EvaluationData:
    """Open the data, and hold it against the other ranks' and the training's.

    Raises:
        Failure: DATA for other classes than the model was trained on, and for ranks that see different data; NO_INPUT
            without validation images, and as `registry.open_splits`.
    """
    before = checkpoints.training_dataset_facts(chosen)
    sets = registry.open_splits(checkpoints.without_class_count(config.data, before))
    told = statistics.data_fingerprint(sets, config.data.root)
    statistics.refuse_different_data(told, config.data.name, ready.gathered)
    there = DatasetFacts(**told | {"data": config.data, "classes": tuple(sets.classes)})
    if before is not None:
        sets = map_to_training_classes(sets, before.classes)
        checkpoints.refuse_other_classes(before, replace(there, classes=sets.classes))
    sets = use_all_for_validation(sets) if all_ else sets
    if not len(sets.validation.labels):
        raise _no_validation_data_failure(config)
    notes = checkpoints.evaluation_caveats(before, there, whole=all_) if before is not None else ()
    return EvaluationData(sets=sets, words=there.measured(whole=all_), all=all_, notes=notes)


def load_weights(chosen: ChosenCheckpoint) -> CheckpointWeights:
    """The averaged weights where the checkpoint has them, else those of its step. Raises Failure (DATA)."""
    found = CommittedCheckpoint(path=chosen.path, step=chosen.contents.step, contents=chosen.contents)
    tensors, _ = format.load_checkpoint(found, (EMA_GROUP, MODEL_GROUP))
    if MODEL_GROUP not in tensors:
        raise _model_mismatch_failure(
            chosen.path.name, f"no {MODEL_GROUP}{format.TENSORS_SUFFIX} in it", "the weights of a model"
        )
    average = tensors.get(EMA_GROUP, {})
    return CheckpointWeights(tensors={**tensors[MODEL_GROUP], **average}, averaged=bool(average))


def build_model(config: RunConfig, sets: DataSplits, weights: CheckpointWeights, ready: Runtime) -> nn.Module:
    """The network with these weights, on the device and in the run's precision.

    Raises:
        Failure: DATA where the weights are another network's, as for another number of classes.
    """
    own = replace(config.model, weights=None)  # what the training began with may be gone
    net = model_registry.build_model(own, classes=len(sets.classes), shape=sets.shape, seed=config.run.seed)
    if wrong := _state_dict_differences(net.state_dict(), weights.tensors):
        there, ours = f"{len(sets.classes)} classes, pictures of {list(sets.shape.input)}", "; ".join(wrong[:3])
        raise _model_mismatch_failure("the checkpoint", ours, f"a network for the data: {there}")
    net.load_state_dict(dict(weights.tensors))
    return ready.accelerator.prepare_model(net, evaluation_mode=True)  # type: ignore[no-any-return]


def open_validation_loader(
    config: RunConfig, sets: DataSplits, ready: Runtime, pulse: Heartbeat | None = None
) -> BatchLoader:
    """The loader of the validation images alone."""
    nothing = EmptySource(labels=torch.empty(0, dtype=torch.int64), stored=tuple(sets.shape.stored))
    sets = replace(sets, training=nothing)
    seed, host = config.run.seed, shared_memory.host_ranks(ready.world, ready.gathered)
    return open_loader(sets, config.data, seed=seed, device=ready.device, cores=host.cores(), pulse=pulse, host=host)


def _build_report(
    config: RunConfig,
    chosen: ChosenCheckpoint,
    part: EvaluationData,
    ready: Runtime,
    measured: Evaluation,
    *,
    averaged: bool,
    loader: str,
) -> EvaluationReport:
    return EvaluationReport(
        checkpoint=str(chosen.path),
        step=chosen.contents.step,
        weights=EMA_GROUP if averaged else MODEL_GROUP,
        standing=describe_place_in_run(chosen.path),
        measured=part.words,
        all=part.all,
        notes=part.notes,
        world_size=ready.world.world_size,
        device=ready.device.type,
        precision=ready.precision,
        data=config.data.name,
        loader=loader,
        left_out=len(part.sets.validation.labels) - measured.result.samples,
        classes=part.sets.classes,
        result=measured.result,
        confusion=None if measured.confusion is None else measured.confusion.tolist(),
    )


def _state_dict_differences(ours: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> list[str]:
    """What is missing, too much, or of another shape, the last layer first: there the classes show."""
    shapes = [
        f"{name}: {list(saved[name].shape)} in the checkpoint, {list(tensor.shape)} for this data"
        for name, tensor in reversed(list(ours.items()))
        if name in saved and saved[name].shape != tensor.shape
    ]
    missing = [f"{name} is not in the checkpoint" for name in ours if name not in saved]
    return [*shapes, *missing, *(f"{name} is not in the network" for name in saved if name not in ours)]


def _model_mismatch_failure(what: str, found: str, expected: str) -> Failure:
    return Failure(
        f"{what} does not fit",
        found=found,
        expected=expected,
        fix="measure it on data with the classes and the size that it was trained with: data.root, data.image_size",
        code=ExitCode.DATA,
    )


def _no_validation_data_failure(config: RunConfig) -> Failure:
    return Failure(
        "there is no validation image to measure",
        found=f"data.name={config.data.name}, data.val_fraction={config.data.val_fraction:g}",
        fix="measure every image with --all, or give data with a val or test side, or another data.val_fraction",
        code=ExitCode.NO_INPUT,
    )
