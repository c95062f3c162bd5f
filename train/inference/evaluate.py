"""One rank loads a checkpoint and evaluates it on its share of the validation images.

The metrics do not depend on the number of ranks, so they are those of the training. All images can
be evaluated instead of the validation images. A test set may lack classes of the training: its
images get the class indices of the training.
"""

from __future__ import annotations

import filecmp
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, Heartbeat, World, list_some, print_message, shell_command
from train import files
from train.checkpoint import format, store
from train.checkpoint.store import EMA_GROUP, MODEL_GROUP, CommittedCheckpoint
from train.components import build_network
from train.config import resume_rules
from train.config.resolved import refuse_key_of_other_task
from train.config.schema import DataConfig, RunConfig
from train.data import augment, image_lists, registry, statistics
from train.data.image_sizes import with_evaluation_size
from train.data.loader import BatchLoader, open_loader
from train.data.preprocessing import Preprocessing
from train.data.splits import (
    DataSplits,
    SampleSource,
    with_all_as_validation,
    with_test_as_validation,
    without_training,
)
from train.distributed import runtime, shared_memory
from train.distributed.runtime import Runtime
from train.evaluation.validator import (
    Evaluation,
    Validator,
    explain_out_of_memory,
    max_batch_size,
    refuse_flips,
)
from train.inference import checkpoints, csv_table, explanation
from train.inference.checkpoints import DatasetFacts, EvaluatedSplit, describe_standing
from train.inference.evaluation_report import WEIGHTS_DESCRIPTIONS, EvaluationReport
from train.inference.gallery import Explain, make_gallery
from train.report import saved_evaluation
from train.report.saved_evaluation import SavedEvaluation
from train.run import record
from train.run.record import EVALUATION_FILE
from train.tasks import TASKS
from train.tasks.base import ImageResults
from train.tasks.registry import open_task

CHOSEN_THRESHOLDS_CAVEAT: Final = (
    "eval.threshold=auto has chosen the thresholds on these same images: macro F1 is better than on new ones"
)
NUM_COMPARED_FILES: Final = 10  # of the copies that are found by their names


def map_to_training_classes(sets: DataSplits, classes: Sequence[str]) -> DataSplits:
    """Map labels to the training's `classes`, if the data has a subset of them; otherwise return `sets`.

    Only class folders and tables have names; in other data a class is a number.
    """
    has_names = sets.training.encoded_images() is not None and sets.validation.encoded_images() is not None
    if not (TASKS[sets.task].has_classes and has_names and set(sets.classes) < set(classes)):
        return sets
    index_by_name = {name: index for index, name in enumerate(classes)}
    indices = torch.tensor([index_by_name[name] for name in sets.classes])
    task = open_task(sets.task, sets.classes, sets.target)

    def map_labels(source: SampleSource) -> SampleSource:
        images = source.encoded_images()
        if images is None:
            return source
        return replace(images, labels=task.map_labels(images.labels, indices=indices, outputs=len(classes)))

    return replace(sets.map(map_labels), classes=tuple(classes))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWeights:
    """A model's tensors by name. averaged: they are the EMA weights (train.ema_decay)."""

    tensors: Mapping[str, Tensor]
    averaged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationData:
    """The data to evaluate, in the validation split of `sets`.

    words: a description. split: which images are evaluated. notes: caveats about the metrics.
    """

    sets: DataSplits
    words: str
    split: EvaluatedSplit
    notes: tuple[str, ...]


def evaluate_on_rank(
    config: RunConfig,
    chosen: CommittedCheckpoint,
    world: World,
    environ: MutableMapping[str, str],
    *,
    as_json: bool,
    split: EvaluatedSplit = "validation",
    per_image: Path | None = None,
    for_report: bool = False,
    with_heat_maps: bool = False,
    heartbeat: Heartbeat | None = None,
) -> int:
    """Evaluate as one rank; rank 0 writes the result to stdout. Returns the exit code (OK).

    split: which images to evaluate. per_image: the CSV table that rank 0 writes, with a row for each image. for_report:
    rank 0 keeps diagrams and images in the run's folder; with_heat_maps: and a heat map of each image.

    Raises:
        Failure: if the checkpoint cannot be evaluated.
    """
    rank_runtime = runtime.start(config, world, environ)
    chosen = rank_runtime.run_on_rank_zero(lambda: chosen)  # rank 0's choice: a training may save meanwhile
    heartbeat = heartbeat or Heartbeat()
    heartbeat.beat("data")
    # Without the cache: filling it would also read the training images.
    config = replace(config, data=replace(config.data, cache=None))
    data = open_evaluation_data(config, chosen, rank_runtime, split=split, cache_folder=files.cache_folder(environ))
    sets = data.sets
    refuse_key_of_other_task(config, checkpoints.THRESHOLD_KEY, sets.task)
    # Those of the training's evaluation of these weights, if they are its own: no image of a test set chooses them.
    thresholds = checkpoints.label_thresholds(store.read_state(chosen), config.eval, len(sets.classes))
    if thresholds is None and checkpoints.THRESHOLD_KEY in TASKS[sets.task].keys:
        data = replace(data, notes=(*data.notes, CHOSEN_THRESHOLDS_CAVEAT))
    weights = load_weights(chosen)
    model = build_model(config, sets, weights, rank_runtime)
    for note in (*data.notes, *checkpoints.describe_changed_code(chosen)) if rank_runtime.is_main else ():
        print_message(f"WARNING: {note}", sys.stderr)
    if with_heat_maps:
        example = torch.zeros((1, *sets.shape.input), device=rank_runtime.device)
        explanation.refuse_network_without_map(model, example, explanation.EXPLAIN_OPTION)
    num_images, keeps_images = len(sets.validation.labels), per_image is not None or for_report
    with explain_out_of_memory(max_batch_size(num_images, config.eval.batch_size)):
        loader = open_validation_loader(config, sets, rank_runtime, heartbeat)
        task = open_task(sets.task, sets.classes, sets.target, config.optim)
        validator = Validator(
            network=model,
            runtime=rank_runtime,
            config=config.eval,
            task=task,
            heartbeat=heartbeat,
        )
        evaluation = validator.measure(
            loader,
            num_images,
            thresholds=thresholds,
            details=keeps_images,
        )
    assert evaluation is not None  # nothing stops it
    if rank_runtime.is_main:
        report = _build_report(
            config, chosen, data, rank_runtime, evaluation, averaged=weights.averaged, loader=loader.description
        )
        print_message(report.as_json() if as_json else report.as_text(), sys.stdout)
        results = task.image_results(evaluation.rows, evaluation.result.thresholds) if keeps_images else None
        if per_image is not None and results is not None:
            table = encode_per_image(results, sets.validation)
            files.write_named_file(per_image, table, csv_table.PER_IMAGE_OPTION, csv_table.SUFFIX)
            print_message(f"per image      {len(results.samples):,} rows in {per_image}", sys.stderr)
        if for_report and results is not None:
            explain = _explainer(model, rank_runtime.device, loader.preprocessing) if with_heat_maps else None
            saved = _evaluation_for_report(report, results, sets.validation, config.data.root, explain)
            saved_evaluation.write(checkpoints.run_folder_of(chosen.path) / EVALUATION_FILE, saved)
    rank_runtime.barrier()
    rank_runtime.close()
    return int(ExitCode.OK)


def encode_per_image(results: ImageResults, source: SampleSource) -> bytes:
    """The CSV table of `train eval --per-image`."""
    head = "sample" if source.file_names is None else "path"
    rows = zip(source.names(results.samples), results.cells, strict=True)
    return csv_table.encode((head, *results.head), ((csv_table.path_cell(name), *cells) for name, cells in rows))


def open_evaluation_data(
    config: RunConfig,
    chosen: CommittedCheckpoint,
    rank_runtime: Runtime,
    *,
    split: EvaluatedSplit,
    cache_folder: Path | None = None,
) -> EvaluationData:
    """Open the data, and compare it with the other ranks' and the training's. cache_folder: as `registry.open_splits`.

    Raises:
        Failure: DATA for other classes than the training's, and for ranks that see different data;
            NO_INPUT without images in this split, and as `registry.open_splits`.
    """
    training_facts = checkpoints.training_dataset_facts(chosen)
    host = shared_memory.host_ranks(rank_runtime.world, rank_runtime.all_gather)
    sets = registry.open_splits(checkpoints.without_class_count(config.data, training_facts), host, cache_folder)
    fingerprint = statistics.data_fingerprint(sets, config.data.root)
    statistics.refuse_different_data(fingerprint, config.data.name, rank_runtime.all_gather)
    facts = DatasetFacts(
        data=config.data,
        classes=tuple(sets.classes),
        training=fingerprint["training"],
        validation=fingerprint["held_out"],
        test=fingerprint.get(resume_rules.TEST_KEY, 0),
        digests=fingerprint[resume_rules.DIGESTS_KEY],
        task=sets.task,
        target=sets.target,
        has_own_validation=sets.has_own_validation,
    )
    if training_facts is not None:
        sets = map_to_training_classes(sets, training_facts.classes)
        checkpoints.refuse_other_classes(training_facts, replace(facts, classes=sets.classes))
        sets = replace(sets, target=training_facts.target)
    if split == "all":
        sets = with_all_as_validation(sets)
    if split == "test":
        if sets.test is None:
            raise _no_test_data_failure(config)
        sets = with_test_as_validation(sets)
    if not len(sets.validation.labels):
        raise _no_validation_data_failure(config)
    sets = with_evaluation_size(sets, config.eval.image_size)
    refuse_flips(config.eval, sets)
    notes: tuple[str, ...] = ()
    if training_facts is not None and rank_runtime.world.rank == 0:  # which prints them
        notes = checkpoints.evaluation_caveats(
            training_facts,
            facts,
            split=split,
            find_copies=partial(copies_caveat, training_facts.data, config.data, sets.validation, cache_folder),
        )
    caution = record.describe_divergence(chosen.path)
    notes = (caution, *notes) if caution else notes
    return EvaluationData(sets=sets, words=facts.measured(split=split), split=split, notes=notes)


def copies_caveat(
    trained: DataConfig, evaluated: DataConfig, samples: SampleSource, cache_folder: Path | None
) -> str | None:
    """The caveat if most of these image files are copies of the training's, by the names below their folders.

    Numbered files of two data sets have the same names too, so that the content of a few is compared. None if the
    training's files are the same folder, no longer there, or no image files. cache_folder: as `registry.open_splits`.
    """
    source, images = registry.find_source(trained.name), samples.image_files()
    is_same_place = os.path.realpath(trained.root) == os.path.realpath(evaluated.root)
    if images is None or is_same_place or source.origin != "files" or not os.path.exists(trained.root):
        return None
    with suppress(Failure, OSError):
        listed = source.open(trained, shared_memory.SINGLE_RANK, cache_folder).training.image_files()
        if listed is None:
            return None
        before, paths = (image_lists.as_packed_paths(each.paths) for each in (listed, images))
        rows = {name: row for row, name in enumerate(before.names())}
        common = [(row, rows[name]) for row, name in enumerate(paths.names()) if name in rows]
        compared = common[:: max(1, len(common) // NUM_COMPARED_FILES)]
        same = sum(filecmp.cmp(paths[row], before[other], shallow=False) for row, other in compared)
        if 2 * len(common) > len(paths) and 2 * same > len(compared):
            return (
                f"{len(common):,} of these {len(paths):,} images are copies of images in {trained.root} that the model "
                f"was trained on, by their names: {checkpoints.SEEN_IMAGES_CAVEAT}"
            )
    return None


def load_weights(chosen: CommittedCheckpoint) -> CheckpointWeights:
    """The EMA weights if the checkpoint has them, otherwise those of its step. Raises Failure (DATA)."""
    tensors, averaged = format.load_model(chosen)
    if not tensors:
        raise _model_mismatch_failure(
            chosen.path.name, f"no {MODEL_GROUP}{format.TENSORS_SUFFIX} in it", "the weights of a model"
        )
    return CheckpointWeights(tensors=tensors, averaged=averaged)


def build_model(config: RunConfig, sets: DataSplits, weights: CheckpointWeights, rank_runtime: Runtime) -> nn.Module:
    """The model with these weights, on the device and in the run's precision.

    Raises:
        Failure: DATA if the weights do not fit the model, as for another number of classes; USAGE if the model does
            not take the size of the evaluated samples.
    """
    model = build_network(config.model, weights.tensors, sets, seed=config.run.seed)
    if differences := _state_dict_differences(model.state_dict(), weights.tensors):
        expected = f"{len(sets.classes)} classes, pictures of {list(sets.shape.input)}"
        raise _model_mismatch_failure(
            "the checkpoint", list_some(differences, separator="; "), f"a network for the data: {expected}"
        )
    model = rank_runtime.to_device(model)  # first: a precision may convert the parameters, which round what they load
    format.restore_network(model, weights.tensors)
    return rank_runtime.accelerator.prepare_model(model, device_placement=False, evaluation_mode=True)  # type: ignore[no-any-return]


def open_validation_loader(
    config: RunConfig, sets: DataSplits, rank_runtime: Runtime, heartbeat: Heartbeat | None = None
) -> BatchLoader:
    """A loader of the validation split only."""
    seed, host = config.run.seed, shared_memory.host_ranks(rank_runtime.world, rank_runtime.all_gather)
    return open_loader(
        without_training(sets),
        config.data,
        seed=seed,
        device=rank_runtime.device,
        cores=host.cores(),
        pulse=heartbeat,
        host=host,
    )


def _build_report(
    config: RunConfig,
    chosen: CommittedCheckpoint,
    part: EvaluationData,
    rank_runtime: Runtime,
    measured: Evaluation,
    *,
    averaged: bool,
    loader: str,
) -> EvaluationReport:
    return EvaluationReport(
        checkpoint=str(chosen.path),
        step=chosen.step,
        weights=EMA_GROUP if averaged else MODEL_GROUP,
        standing=describe_standing(chosen.path),
        measured=part.words,
        all=part.split == "all",
        split=part.split,
        notes=part.notes,
        world_size=rank_runtime.world.world_size,
        device=rank_runtime.device.type,
        precision=rank_runtime.precision,
        data=config.data.name,
        loader=loader,
        left_out=len(part.sets.validation.labels) - measured.result.samples,
        classes=part.sets.classes,
        result=measured.result,
        confusion=None if measured.confusion is None else measured.confusion.tolist(),
    )


def _explainer(model: nn.Module, device: torch.device, preprocessing: Preprocessing) -> Explain:
    """What makes heat maps of stored samples."""

    def explain(pixels: Tensor, outputs: Sequence[int] | None) -> Tensor:
        images = augment.normalize(pixels.to(device), preprocessing)
        return explanation.compute_heat_maps(model, images, outputs)

    return explain


def _evaluation_for_report(
    report: EvaluationReport,
    results: ImageResults,
    source: SampleSource,
    root: str,
    explain: Explain | None,
) -> SavedEvaluation:
    task, folder = report.result.task, root if os.path.isdir(root) else os.path.dirname(root)
    mistakes = results.find_mistakes(report.result)
    galleries = (make_gallery(selection, results.samples, source, folder, explain) for selection in mistakes.selections)
    return SavedEvaluation(
        step=report.step,
        weights=WEIGHTS_DESCRIPTIONS[report.weights],
        standing=report.standing,
        measured=report.measured,
        samples=report.result.samples,
        task=task,
        values={name: report.result.value(name) for name in report.result.values},
        notes=report.notes,
        classes=report.classes,
        galleries=tuple(galleries),
        confusion=report.confusion,
        calibration=mistakes.calibration,
        labels=mistakes.labels,
        numbers=mistakes.numbers,
    )


def _state_dict_differences(ours: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> list[str]:
    """Missing, extra and differently shaped tensors, in words.

    The shapes of the last layer come first, since they show the number of classes.
    """
    shapes = [
        f"{name}: {list(saved[name].shape)} in the checkpoint, {list(tensor.shape)} for this data"
        for name, tensor in reversed(list(ours.items()))
        if name in saved and saved[name].shape != tensor.shape
    ]
    missing = [f"{name} is not in the checkpoint" for name in ours if name not in saved]
    return [*shapes, *missing, *(f"{name} is not in the network" for name in saved if name not in ours)]


def _model_mismatch_failure(what: str, mismatch: str, expected: str) -> Failure:
    return Failure(
        f"{what} does not fit",
        found=mismatch,
        expected=expected,
        fix="measure it on data with the classes and the size that it was trained with: data.root, data.image_size",
        code=ExitCode.DATA,
    )


def _no_test_data_failure(config: RunConfig) -> Failure:
    return Failure(
        "there is no test split to measure",
        found=f"data.name={config.data.name}, data.root={config.data.root}, "
        f"data.test_fraction={config.data.test_fraction:g}",
        expected="a folder test beside train and val, or data.test_fraction in the config of the training",
        fix=f"measure other images: {shell_command('train eval RUN data.root=/my/test --all')}",
        code=ExitCode.NO_INPUT,
    )


def _no_validation_data_failure(config: RunConfig) -> Failure:
    return Failure(
        "there is no validation image to measure",
        found=f"data.name={config.data.name}, data.val_fraction={config.data.val_fraction:g}",
        fix="measure every image with --all, or give data with a val or test side, or another data.val_fraction",
        code=ExitCode.NO_INPUT,
    )
