"""The commands `train check` and `train where` print the effective plan and the run's folder.

They start and write nothing. The plan includes what `train` would do with a run that is there
already: finish, resume or refuse.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from entrypoint import ExitCode, Failure, Plan, print_message
from train import file_lock
from train.checkpoint import manifest, store
from train.checkpoint.manifest import DamagedCheckpointError
from train.cli import launch
from train.cli.launch import (
    check_config,
    count_planned_steps,
)
from train.config import batches, checks, load, resume_rules, schema
from train.config.batches import BatchSizes, StepCounts
from train.config.load import format_value
from train.config.schema import RunConfig, RunSection
from train.data import registry
from train.data.registry import DataSummary
from train.evaluation import early_stopping
from train.evaluation.metrics import EvaluationResult
from train.optim import schedule
from train.run import folder, lock, record, time_limit
from train.run.folder import describe_folder_state, refuse_symlinks, run_folder

STATE_FILE: Final = "state.json"  # of a checkpoint: all but its tensors
UNKNOWN_TOTAL_STEPS: Final = "a number that the start knows"
MAX_STEPS: Final = 1 << 62  # steps: what a training refuses too
START_OVER_FIX: Final = "start over with checkpoint.resume=never"
CONTINUE_OR_START_OVER: Final = "to go on, or checkpoint.resume=never to start over"
MALFORMED_STATE_ERRORS: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePreview:
    """What a start would do, in words. refused: it would end at once, with an error."""

    said: str
    refused: bool = False


def preview_resume(
    config: RunConfig, folder: Path, *, steps: StepCounts | None, data: Mapping[str, Any] | None = None
) -> ResumePreview | None:
    """What `train` would do with the run in `folder`; None where there is none.

    Of the newest checkpoint its list and its state are read, and compared with their hashes; of its tensors, which may
    be large, the size. Their hashes are left to the start, as is what only its ranks know.

    Args:
        steps: that the configuration asks for; None where only the start can count them.
        data: its classes, and how many images each side has, where that is known.
    """
    try:
        if unusable := _preview_unwritable_folder(config, folder):
            return unusable
        held_by = lock.refuse_living_holder(folder)
        refuse_symlinks(folder)
        there = store.list_checkpoints(folder / "checkpoints")
        if not there:
            found = ResumePreview(said="would begin") if held_by else None
        elif config.checkpoint.resume == "never":
            found = ResumePreview(said=f"would begin anew: what is in {folder} moves to before-N there")
        else:
            found = _preview_from_checkpoints(config, folder, there, steps, data or {})
        return (
            replace(found, said=f"{found.said}; first {_describe_lock_wait(held_by)}") if found and held_by else found
        )
    except Failure as failure:
        what, *facts = str(failure).splitlines()
        return _refused_start(int(failure.code), [what.partition("] ")[2], *map(str.strip, facts)])


def _preview_from_checkpoints(
    config: RunConfig, folder: Path, there: Mapping[int, Path], steps: StepCounts | None, data: Mapping[str, Any]
) -> ResumePreview:
    """Raises Failure where a start would, as far as that is known here."""
    for path in reversed([*there.values()]):
        try:
            told = _read_checkpoint_state(path)
            resume_rules.refuse_config_changes(told["config"], asdict(config))
            resume_rules.refuse_data_changes(told.get("data"), data, folder)
            return _preview_from_state(config, folder, told, steps)
        except DamagedCheckpointError:
            continue
        except MALFORMED_STATE_ERRORS as error:
            words = [
                f"{path} does not hold the state of a training: {type(error).__name__}",
                f"fix: delete it, or {START_OVER_FIX}",
            ]
            return _refused_start(65, words)
    return _refused_start(65, [f"no checkpoint in {folder}/checkpoints is whole", f"fix: {START_OVER_FIX}"])


def _preview_unwritable_folder(config: RunConfig, folder: Path) -> ResumePreview | None:
    """What a start would do where it cannot write; None where it can, as far as permissions say."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        return _refused_start(ExitCode.OUTPUT, [f"{folder} is no folder", "fix: set another run.name, or move it away"])
    places = (place for place in (folder, folder / "checkpoints") if os.path.isdir(place))
    place = next((place for place in places if not os.access(place, os.W_OK | os.X_OK)), None)
    if place is None:
        return None
    if place == folder and config.run.output_dir == RunSection().output_dir:
        elsewhere = "train begins anew in a temporary folder, or is refused (73) where several tasks start ranks"
        return ResumePreview(said=f"would not go on: {folder} cannot be written; {elsewhere}")
    return _refused_start(
        ExitCode.OUTPUT, [f"{place} cannot be written", "fix: set run.output_dir to a folder of your own"]
    )


def _describe_lock_wait(held_by: str) -> str:
    return (
        f"{held_by} holds the folder: train would wait up to {file_lock.STALE_S:.0f} s for a sign of life, "
        f"and be refused ({int(ExitCode.OUTPUT)}) if there is one"
    )


def _refused_start(code: int, words: Sequence[str]) -> ResumePreview:
    return ResumePreview(said=f"would be refused ({code}): {'; '.join(words)}", refused=True)


def _read_checkpoint_state(path: Path) -> Any:
    """What a checkpoint tells beside its tensors.

    Raises:
        Damaged, Failure: as `store.verify_sizes`.
    """
    contents = store.verify_sizes(path)
    if STATE_FILE not in contents.files:
        raise DamagedCheckpointError(f"{STATE_FILE} is not in it")
    expected = contents.files[STATE_FILE]
    data = manifest.read_file(path, STATE_FILE, limit=expected.size)
    manifest.refuse_changed_file(STATE_FILE, expected, manifest.make_file_entry(data))
    return json.loads(data)


def _preview_from_state(
    config: RunConfig, folder: Path, told: Mapping[str, Any], steps: StepCounts | None
) -> ResumePreview:
    """Where the same training stands. Raises one of ODD for what no training tells; Failure for one past its end."""
    state, before, step = told["state"], told["config"]["eval"], told["state"]["step"]
    if type(step) is not int or not 0 <= step < MAX_STEPS:
        raise ValueError(step)
    last = EvaluationResult.from_json(state["result"]) if state.get("result") else None
    held = early_stopping.restore_target_streak(config.eval, int(state.get("held", 0)), last, before.get("target"))
    steps, wanted = steps or _recorded_steps(config, folder), config.train
    if steps is not None:
        early_stopping.refuse_run_past_end(told, config, steps)
    at = f"step {step:,} of {UNKNOWN_TOTAL_STEPS if steps is None else format(steps.total, ',')}"
    longer = (
        batches.overrides_to_continue(steps, step, epochs=wanted.epochs, max_steps=wanted.max_steps) if steps else []
    )
    if early_stopping.should_stop(config.eval, held):
        longer.insert(0, "eval.target=null")
        at += f": {config.eval.metric} has reached eval.target {config.eval.target:g}"
    if longer:
        return ResumePreview(
            said=f"is finished ({at}): train would do nothing; add {' '.join(longer)} {CONTINUE_OR_START_OVER}"
        )
    return ResumePreview(said=f"would go on from {at}")


def _recorded_steps(config: RunConfig, folder: Path) -> StepCounts | None:
    """By what the last start has counted, where nothing can be counted before a start."""
    facts = (record.read_run(folder) or {}).get("training")
    per_epoch = facts.get("steps_per_epoch") if isinstance(facts, dict) else None
    if type(per_epoch) is not int or not 0 < per_epoch < MAX_STEPS:
        return None
    total = batches.count_total_steps(per_epoch, epochs=config.train.epochs, max_steps=config.train.max_steps)
    return StepCounts(per_epoch=per_epoch, total=total, dropped=0)


KNOWN_AT_START = "known at the start: they depend on how many samples there are"


def describe_plan(
    config: RunConfig, source: str | None, plan: Plan, note: str | None, also: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The effective plan, one fact per line. also: more of them, of what the config does not say.

    Raises:
        Failure: as `check_config`, `DataSource.describe` and `count_planned_steps`.
    """
    batch = check_config(config, plan.world.world_size)
    data = registry.find_source(config.data.name).describe(config.data)
    counted, folder = count_planned_steps(config, batch, data.training), run_folder(config)
    rows = {"config": source or "the quickstart (no --config)"} | launch_rows(plan)
    rows |= training_rows(config, plan, batch, data)
    rows |= {"steps": KNOWN_AT_START, "learning rate": KNOWN_AT_START}
    if counted is not None:
        rows |= {"steps": f"{counted.per_epoch:,} per epoch, {counted.total:,} in all; {_describe_dropped(counted)}"}
        rows |= {
            "learning rate": schedule.describe_schedule(schedule.build_schedule(config.optim, counted, batch.global_))
        }
    rows |= {"output": f"{folder} ({describe_folder_state(folder)})"}
    warnings, notes = [*plan.warnings, *data.warnings], [note, *data.notes]
    if so_far := preview_resume(config, folder, steps=counted, data=data.facts):
        rows |= {} if so_far.refused else {"this run": so_far.said}
        warnings += [f"this run {so_far.said}"] if so_far.refused else []
    lines = [f"{name:<14} {value}" for name, value in (rows | dict(also)).items()]
    lines += [f"WARNING: {warning}" for warning in warnings]
    return "\n".join([*lines, *(f"note: {told}" for told in notes if told)])


def launch_rows(plan: Plan) -> dict[str, str]:
    """Which processes there will be."""
    world = plan.world
    ranks = f"{_format_count(world.world_size, 'rank')} on {_format_count(world.num_nodes, 'node')}"
    of_them = f"this task starts {plan.spawn}, the first is rank={world.rank}/{world.world_size}"
    return {
        "launcher": plan.launcher,
        "world": ranks + (f", {of_them}" if world.world_size > 1 else ""),
        "hosts": ", ".join(plan.hosts) or "not known before they meet",
        "device": plan.device,
    }


def training_rows(config: RunConfig, plan: Plan, batch: BatchSizes, data: DataSummary) -> dict[str, str]:
    """What they will do."""
    optim = config.optim
    decay, momentum = f"weight decay {optim.weight_decay:g}", f"momentum {optim.momentum:g}"
    if schema.is_factory(optim.name):
        optimizer = [optim.name, f"{decay} and {momentum} where it takes them"]
    else:
        unused, words = checks.unused_keys(config), {"optim.weight_decay": decay, "optim.momentum": momentum}
        optimizer = [optim.name, *(text for key, text in words.items() if key not in unused)]
    auto = "fp32 (auto, on the CPU)" if plan.device == "cpu" else "bf16 where the GPUs have it (auto)"
    return {
        "data": data.description,
        "model": _format_with_arguments(config.model.name, config.model.args),
        "precision": auto if config.train.precision == "auto" else config.train.precision,
        "global batch": str(batch) + _describe_batch_search(config, plan),
        "reproducible": checks.describe_reproducibility(config.train),
        "optimizer": _format_with_arguments(", ".join(optimizer), optim.args),
    }


def _describe_batch_search(config: RunConfig, plan: Plan) -> str:
    searched = plan.device == "cuda" and config.train.micro_batch_size == "auto" and config.train.parallel != "dp"
    return "; the start looks for the largest micro batch that fits (auto)" if searched else ""


def _format_with_arguments(name: str, args: Mapping[str, Any]) -> str:
    """A name with its arguments, as the file writes them."""
    return f"{name} {format_value(dict(args))}" if args else name


def _describe_dropped(counted: StepCounts) -> str:
    if counted.dropped == 1:
        return "the last sample of an epoch is left out"
    return (
        f"the last {counted.dropped:,} samples of an epoch are left out" if counted.dropped else "no sample is left out"
    )


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def check(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Show what would be done. Where the GPUs are missing (a login node), for the ranks that were asked for."""
    config = load.load_config(arguments.config, overrides)
    asked, note = launch.launch_options(arguments, config, environ), None
    try:
        plan = launch.plan_launch(config, asked, environ)
    except Failure as failure:
        if failure.code != ExitCode.NODE:
            raise
        note = f"here it would not start: {failure.what}. fix: {failure.fix}"
        plan = launch.plan_launch(config, replace(asked, device="cpu"), environ)
    if note is None:
        launch.refuse_invalid_launch(config, plan, environ)
    until = time_limit.deadline_row(arguments.time_limit, environ, now=time.time())
    print_message(
        describe_plan(config, arguments.config, launch.add_config_warnings(plan, config), note, until), sys.stdout
    )
    return 0


def print_run_folder(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """The run's folder, for job scripts: they read errors/exit.json in it. Asks nothing of the launcher."""
    print(folder.run_folder(load.load_config(arguments.config, overrides)))
    return 0
