"""The commands `train check` and `train where` print the effective plan and the run's folder.

They start and write nothing. The plan includes what `train` would do with an existing run: resume
it, do nothing because it is finished, or refuse.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from entrypoint import ExitCode, Failure, Plan, join_lines, pluralize, print_message
from train import file_lock, files, plugin
from train.checkpoint import store
from train.checkpoint.manifest import DamagedCheckpointError
from train.cli import launch
from train.config import augmentations, batches, checks, load, resume_rules, schema
from train.config.batches import BatchSizes, StepCounts
from train.config.load import format_value
from train.config.models import BUILTIN_MODELS
from train.config.optimizers import OPTIMIZERS
from train.config.resolved import resolve
from train.config.schema import RunConfig, RunSection
from train.data import registry
from train.data.class_folders import describe_text_order
from train.data.registry import DataSummary
from train.evaluation import early_stopping
from train.evaluation.results import EvaluationResult, read_final_score
from train.logging.progress import format_rows
from train.optim import schedule
from train.run import deadline, folder, lock
from train.run.folder import describe_folder_state, refuse_symlinks, run_folder

MAX_STEPS: Final = 1 << 62  # a training refuses more too
FIRST_NODE: Final = "the-first-node"  # stands for its address, which only a launch needs
CONTINUE_OR_START_OVER: Final = "to go on, or checkpoint.resume=never to start over"


def preview_resume(
    config: RunConfig, folder: Path, *, steps: StepCounts, data: Mapping[str, Any] | None = None
) -> str | None:
    """What `train` would do with the run in `folder`, in words; None without a run.

    The manifest and the state of the newest checkpoint are read and their hashes compared; of its
    tensors, which may be large, only the size. The training verifies their hashes, and what only
    its ranks know.

    Args:
        steps: the steps of the config.
        data: its classes, and the number of images of each split, if known.

    Raises:
        Failure: that with which `train` would exit at once.
    """
    if unwritable := _preview_unwritable_folder(config, folder):
        return unwritable
    held_by = lock.refuse_living_holder(folder)
    refuse_symlinks(folder)
    available = store.list_checkpoints(folder / "checkpoints")
    if not available:
        message = "would begin" if held_by else None
    elif config.checkpoint.resume == "never":
        message = f"would start over: what is in {folder} moves to before-N there"
    else:
        message = _preview_from_checkpoints(config, folder, available, steps, data or {})
    if message is None or not held_by:
        return message
    return (
        f"{message}; first {held_by} holds the folder: train would wait up to {file_lock.STALE_S:.0f} s for a sign of "
        f"life, and be refused ({int(ExitCode.OUTPUT)}) if there is one"
    )


def describe_refusal(failure: Failure) -> str:
    """That `train` would end with this failure, on one line."""
    what, *facts = str(failure).splitlines()
    return f"would be refused ({int(failure.code)}): {'; '.join([what.partition('] ')[2], *map(str.strip, facts)])}"


def _preview_from_checkpoints(
    config: RunConfig, folder: Path, available: Mapping[int, Path], steps: StepCounts, data: Mapping[str, Any]
) -> str:
    """Preview from the newest undamaged checkpoint.

    Raises Failure if `train` would, as far as is known here.
    """
    for path in reversed([*available.values()]):
        try:
            # Without its tensors, which may be large.
            content = files.parse_json(store.read_verified(path, store.verify_sizes(path), store.STATE_FILE))
            resume_rules.refuse_config_changes(content["config"], asdict(config), folder)
            resume_rules.refuse_data_changes(content.get("data"), data, folder)
            return _preview_from_state(config, folder, content, steps)
        except DamagedCheckpointError:
            continue
        except files.MALFORMED_ERRORS as error:
            what = f"{path} does not hold the state of a training: {type(error).__name__}"
            raise Failure(what, fix=store.DAMAGED_FIX, code=ExitCode.DATA) from error
    raise Failure(f"no checkpoint in {folder}/checkpoints is whole", fix=store.START_OVER_FIX, code=ExitCode.DATA)


def _preview_unwritable_folder(config: RunConfig, folder: Path) -> str | None:
    """What `train` would do if it cannot write to the folder; None if permissions allow it.

    Raises:
        Failure: OUTPUT where no temporary folder would take its place.
    """
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise Failure(f"{folder} is no folder", fix="set another run.name, or move it away", code=ExitCode.OUTPUT)
    folders = (path for path in (folder, folder / "checkpoints") if os.path.isdir(path))
    unwritable = next((path for path in folders if not os.access(path, os.W_OK | os.X_OK)), None)
    if unwritable is None:
        return None
    if unwritable == folder and config.run.output_dir == RunSection().output_dir:
        refused = f"is refused ({int(ExitCode.OUTPUT)}) where several tasks start ranks"
        alternative = f"train starts over in a temporary folder, or {refused}"
        return f"would not go on: {folder} cannot be written; {alternative}"
    fix = "set run.output_dir to a folder of your own"
    raise Failure(f"{unwritable} cannot be written", fix=fix, code=ExitCode.OUTPUT)


def _preview_from_state(config: RunConfig, folder: Path, content: Mapping[str, Any], steps: StepCounts) -> str:
    """Preview from a state.

    Raises files.MALFORMED_ERRORS for a bad state, Failure for a run past its end, and as `_preview_test`.
    """
    state, recorded_eval, step = content["state"], content["config"]["eval"], content["state"]["step"]
    if type(step) is not int or not 0 <= step < MAX_STEPS:
        raise ValueError(step)
    result = EvaluationResult.from_json(state["result"]) if state.get("result") else None
    streak = early_stopping.restore_target_streak(
        config.eval, int(state.get("held", 0)), result, recorded_eval.get("target")
    )
    early_stopping.refuse_run_past_end(content, config, steps)
    position, requested = f"step {step:,} of {steps.total:,}", config.train
    overrides = batches.overrides_to_continue(steps, step, epochs=requested.epochs, max_steps=requested.max_steps)
    stale = int(state.get("stale", 0))
    if stops := early_stopping.find_early_stops(config.eval, target_streak=streak, stale_evaluations=stale):
        overrides = [*(stop.override for stop in stops), *overrides]
        position += f": {'; '.join(stop.description for stop in stops)}"
    if not overrides:
        return f"would go on from {position}"
    has_test_split = resume_rules.TEST_KEY in (content.get("data") or {})
    preview = _preview_test(folder, position, step, state.get("best_step")) if has_test_split else None
    finished = f"is finished ({position}): train would do nothing; add {' '.join(overrides)} {CONTINUE_OR_START_OVER}"
    return preview or finished


def _preview_test(folder: Path, position: str, step: int, best_step: int | None) -> str | None:
    """What `train` would do with the test split of a trained run; None if it is measured.

    Raises:
        Failure: DATA for a checkpoint that cannot be measured.
    """
    score = read_final_score(folder)
    if score is not None and score.trained_steps == step:
        return None
    checkpoints = folder / "checkpoints"
    tested = store.tested_step(checkpoints, best_step=best_step, last_step=step)
    checkpoint = store.list_checkpoints(checkpoints)[tested]
    try:
        store.verify_hashes(checkpoint)
    except DamagedCheckpointError as reason:
        what = f"the checkpoint {checkpoint} is damaged: {reason}"
        raise Failure(what, fix=store.damaged_best_fix(checkpoint), code=ExitCode.DATA) from reason
    return f"is trained ({position}): train would measure the test split with the weights of step {tested:,}"


def describe_plan(
    config: RunConfig, source: str | None, plan: Plan, note: str | None, also: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The effective plan, one fact per line.

    source: the config's file, in whose folder the user's own modules are. note: why the training would not start here;
    None if it would. also: further rows, which are not from the config.

    Raises:
        Failure: as `check_config`, `open_data`, `count_steps` and `preview_network`.
    """
    batch = launch.check_config(config, plan.world.world_size)
    splits, fitted = None, config
    folder = run_folder(config)
    checkpoints = folder / "checkpoints"
    resumes = config.checkpoint.resume == "auto" and any(checkpoints.glob("step-*"))
    if resumes or not _is_known_to_fit(config, batch):
        plugin.add_config_folder_to_path(source, *plugin.names_of_training(config))
        from train.cli import check_network  # torch
        from train.tasks import class_balance

        fitted, splits = check_network.open_data(config, checkpoints if resumes else None)
        data = check_network.describe_data(fitted.data, splits)
    else:
        data = registry.summarize(config.data)
    is_auto, train = config.optim.lr == "auto", config.train
    resolved = resolve(config, fitted, data.task)
    config = resolved.requested
    steps = batches.count_steps(batch, data.training, epochs=train.epochs, max_steps=train.max_steps)
    network_rows = {"model": _format_with_arguments(config.model.name, config.model.args)}
    network_notes: Sequence[str] = ()
    if splits is not None:
        parameters, network_notes = check_network.preview_network(
            resolved, plan, batch, splits=splits, steps=steps, is_here=note is None, is_new_run=not resumes
        )
        network_rows["model"] += f": {parameters:,} parameters are trained"
        if weights_by_class := class_balance.describe_class_weights(config.optim.class_weights, splits.classes):
            network_rows["class weights"] = weights_by_class
        if config.model.weights and network_notes:
            network_rows["weights"], *network_notes = network_notes
    rows = {"config": source or "the quickstart (no --config)"} | launch_rows(plan)
    rows |= training_rows(config, plan, batch, data, network_rows)
    rows |= {
        "steps": f"{steps.per_epoch:,} per epoch, {steps.total:,} in all; {_describe_dropped(steps)}"
        + _describe_repeats(config, steps, batch),
        "learning rate": schedule.describe_schedule(
            schedule.build_schedule(config.optim, steps, batch.global_), is_auto=is_auto
        ),
    }
    rows |= {"output": f"{folder} ({describe_folder_state(folder)})"}
    warnings = [*plan.warnings, *data.warnings]
    warnings += schedule.regression_warnings(config, data.task)
    notes = [note, *data.notes, describe_text_order(data.facts.get("classes", ())), *network_notes]
    notes += batches.step_notes(steps, batch, train, samples=data.training)
    try:
        if message := preview_resume(config, folder, steps=steps, data=data.facts):
            rows["this run"] = message
    except Failure as failure:
        warnings.append(f"this run {describe_refusal(failure)}")
    lines = [format_rows(rows | dict(also)), *(f"WARNING: {warning}" for warning in warnings)]
    return join_lines([*lines, *(f"note: {line}" for line in notes if line)])


def launch_rows(plan: Plan) -> dict[str, str]:
    """Rows about the processes."""
    world = plan.world
    ranks = f"{pluralize(world.world_size, 'rank')} on {pluralize(world.num_nodes, 'node')}"
    this_task = f"this task starts {plan.spawn}, the first is rank={world.rank}/{world.world_size}"
    return {
        "launcher": plan.launcher,
        "world": ranks + (f", {this_task}" if world.world_size > 1 else ""),
        "hosts": ", ".join(plan.hosts) or "not known before they meet",
        "device": plan.device,
    }


# They say which samples there are, not what is to be done with them: each network of this project takes all.
NEUTRAL_DATA_KEYS: Final = ("name", "image_size", "workers", *(key for key in registry.OPTIONAL_KEYS if key != "cache"))


def _is_known_to_fit(config: RunConfig, batch: BatchSizes) -> bool:
    """Whether the network, the optimizer and the data certainly fit, as in the quickstart. Then torch is not needed."""
    if registry.find_source(config.data.name).origin != "computed" or batch.micro == 1:
        return False
    model, optim, default = config.model, config.optim, RunConfig()
    is_listed = model.name in BUILTIN_MODELS and optim.name in OPTIMIZERS and not schema.is_factory(optim.loss)
    asks_more = model.args or model.weights or optim.args or optim.class_weights != default.optim.class_weights
    data = replace(config.data, **{key: getattr(default.data, key) for key in NEUTRAL_DATA_KEYS})
    is_plain = (data, config.eval, config.log.trackers) == (default.data, default.eval, default.log.trackers)
    return is_listed and is_plain and not (asks_more or checks.is_bitwise(config.train))


def training_rows(
    config: RunConfig, plan: Plan, batch: BatchSizes, data: DataSummary, network: Mapping[str, str]
) -> dict[str, str]:
    """Rows about the training. network: the rows of `_preview_network`."""
    optim = config.optim
    decay, momentum = f"weight decay {optim.weight_decay:g}", f"momentum {optim.momentum:g}"
    if schema.is_factory(optim.name):
        optimizer = [optim.name, f"{decay} and {momentum} where it takes them"]
    else:
        unused, optional = registry.unused_keys(config), {"optim.weight_decay": decay, "optim.momentum": momentum}
        optimizer = [optim.name, *(text for key, text in optional.items() if key not in unused)]
    is_searched = checks.searches_micro_batch(config.train, plan.device)
    auto = "fp32 (auto, on the CPU)" if plan.device == "cpu" else "bf16 where the GPUs have it (auto)"
    return {
        "data": data.description,
        "augmentation": _describe_augmentation(config.data.augment),
        **network,
        "precision": auto if config.train.precision == "auto" else config.train.precision,
        "global batch": str(batch) + "; the start looks for the largest micro batch that fits (auto)" * is_searched,
        "reproducible": checks.describe_reproducibility(config.train),
        "optimizer": _format_with_arguments(", ".join(optimizer), optim.args),
        **checks.loss_rows(optim),
    }


def _describe_augmentation(augment: str | list[str | dict[str, Any]]) -> str:
    """The operations with all their arguments, and the name of the preset that they are from."""
    steps = augmentations.expand(augment)
    if not any(step.arguments for step in steps):
        return ", ".join(step.name for step in steps) or augmentations.NONE
    listed = ", ".join(_format_with_arguments(step.name, step.arguments) for step in steps)
    return f"{augment}: {listed}" if isinstance(augment, str) else listed


def _format_with_arguments(name: str, args: Mapping[str, Any]) -> str:
    """A name with its arguments, as a config file writes them."""
    return f"{name} {format_value(dict(args))}" if args else name


def _describe_dropped(steps: StepCounts) -> str:
    if steps.dropped == 1:
        return "the last sample of an epoch is left out"
    return f"the last {steps.dropped:,} samples of an epoch are left out" if steps.dropped else "no sample is left out"


def _describe_repeats(config: RunConfig, steps: StepCounts, batch: BatchSizes) -> str:
    """How many images an epoch trains on with data.repeats; empty without it."""
    if config.data.repeats == 1:
        return ""
    images = steps.per_epoch * (batch.global_ // config.data.repeats)
    return f"; an epoch trains on {pluralize(images, 'image')}, {config.data.repeats} times each"


def check(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the plan. If GPUs are missing (on a login node), print it for the requested ranks.

    `--nodes N` alone is enough: the plan of N machines is that of the first one, whatever its name.
    """
    config = load.load_config(arguments.config, overrides)
    if arguments.nodes is not None and arguments.node_rank is None and arguments.master_addr is None:
        arguments.node_rank, arguments.master_addr = "0", FIRST_NODE
    options, note = launch.launch_options(arguments, config, environ), None
    try:
        plan = launch.plan_launch(config, options, environ)
        launch.refuse_cpu_after_gpu(config, plan)
    except Failure as failure:
        if failure.code not in (ExitCode.NODE, ExitCode.IMAGE_MISMATCH):
            raise
        note = f"here it would not start: {failure.what}. fix: {failure.fix}"
        plan = launch.plan_launch(config, replace(options, device="cpu"), environ)
        if failure.code == ExitCode.NODE:  # other nodes have these GPUs
            plan = replace(plan, device="cuda")
            if options.procs_per_node is None and options.nodes is not None:
                note += "; one rank for each node is shown: add --procs-per-node, the GPUs of a node"
    if note is None:
        launch.refuse_invalid_launch(config, plan, environ)
        folder.refuse_unwritable_folder(config, plan)
    deadline_row = deadline.deadline_row(arguments.time_limit, environ, now=time.time())
    print_message(
        describe_plan(config, arguments.config, launch.add_config_warnings(plan, config), note, deadline_row),
        sys.stdout,
    )
    return 0


def print_run_folder(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the run's folder for job scripts, which read errors/exit.json in it.

    No launcher is needed.
    """
    print(folder.run_folder(load.load_config(arguments.config, overrides)))
    return 0
