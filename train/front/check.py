"""What can be known before anything is started: that the data is there, and what the run will do, in words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from entrypoint import ExitCode, Failure, Plan, unseen
from train.data import imagefolder
from train.fetching import archives
from train.front import images, known, rundir, standing
from train.optim import schedules
from train.settings import arguments, bitwise, idle, kinds, names, parallel
from train.settings.advice import show
from train.settings.batches import Batches, Steps, batches, steps
from train.settings.config import Data, Eval, RunConfig

AT_THE_START = "known at the start: they depend on how many samples there are"


def possible(config: RunConfig, world_size: int) -> Batches:
    """Refuse what cannot work, as far as it is cheap to know: this runs in every task, on every node.

    Raises:
        Failure: USAGE for batches that do not divide or are too large and for keys that do not go together, NO_INPUT
            for data that is not there.
    """
    arguments.refuse_unknown(config.model, config.optim)
    schedules.arguments(config.optim)
    known.refuse(config.data)
    refuse_unseen(config.data)
    refuse_target(config.eval)
    if config.data.download:
        archives.refuse_unpublished(config.data)
    refuse_group(config.data)
    kinds.refuse_mismatch(config.model.name, kinds.dimensions(config.data), f"data.name: {config.data.name}")
    refuse_missing_weights(config)
    bitwise.refuse(config, world_size)
    parallel.refuse_unfit(config.train)
    batch = batches(config.train.global_batch_size, config.train.micro_batch_size, world_size)
    if config.data.name == "folder":
        imagefolder.layout(Path(config.data.root))
    else:
        count_steps(config, batch)
    return batch


def refuse_unseen(data: Data) -> None:
    """What lies outside the folders that the container shows is missing for another reason than a wrong path.

    Raises:
        Failure: NO_INPUT.
    """
    local = data.name != names.SYNTHETIC and not names.is_factory(data.name) and not data.download
    if local and (failure := unseen("data.root", Path(data.root))):
        raise failure


def refuse_group(data: Data) -> None:
    """Only files have paths in which a group could be found.

    Raises:
        Failure: USAGE.
    """
    if data.group is not None and data.name != names.FOLDER:
        raise Failure(
            f"data.group does not go with data.name: {data.name}",
            found=f"data.group: {data.group}",
            fix="leave data.group out, or set data.name to folder",
            code=ExitCode.USAGE,
        )


def refuse_target(wanted: Eval) -> None:
    """Refuse a target that is never reached (per cent), or always.

    Raises:
        Failure: USAGE.
    """
    target, share = wanted.target, wanted.metric != "loss"
    if target is None or (target > 0 and (target <= 1 or not share)):
        return
    raise Failure(
        f"eval.target {target:g} is no value of eval.metric {wanted.metric}",
        found=f"eval.target: {target:g}",
        expected="more than 0, up to 1" if share else "more than 0",
        fix=f"write eval.target={target / 100:g}"
        if share and 1 < target <= 100
        else "correct eval.target, or set null",
        code=ExitCode.USAGE,
    )


def refuse_missing_weights(config: RunConfig) -> None:
    """A run that goes on has its weights already.

    Raises:
        Failure: NO_INPUT.
    """
    path, resumes = config.model.weights, config.checkpoint.resume == "auto"
    if path is None or os.path.exists(path) or (resumes and any(rundir.run_folder(config).glob("checkpoints/step-*"))):
        return
    missing = Failure(
        f"there is nothing at model.weights {path}",
        found=f"looked from {Path.cwd()}",
        fix="correct model.weights, or leave it out: then weights start at random",
        code=ExitCode.NO_INPUT,
    )
    raise unseen("model.weights", Path(path)) or missing


def count_steps(config: RunConfig, batch: Batches, found: images.Found | None = None) -> Steps | None:
    """Steps of the run; None where only its start can tell how many samples there are (.pt files, the user's own data).

    For image folders this lists every file: only `train check` does it, once.

    Raises:
        Failure: USAGE, where an epoch would have no step; NO_INPUT for classes without images; DATA for groups that
            cannot be kept on one side.
    """
    samples = found.training if found else training_samples(config.data)
    if samples is None:
        return None
    return steps(batch, samples, epochs=config.train.epochs, max_steps=config.train.max_steps)


def training_samples(data: Data) -> int | None:
    """Samples that are trained on: all but the held-out ones. None as in `count_steps`."""
    return images.look(data).training if data.name == names.FOLDER else known.samples(data)


def describe(
    config: RunConfig, source: str | None, plan: Plan, note: str | None, also: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The effective plan, one fact per line. also: more of them, of what the config does not say.

    Raises:
        Failure: what `possible` and `count_steps` raise.
    """
    batch = possible(config, plan.world.world_size)
    found = images.look(config.data) if config.data.name == names.FOLDER else None
    counted, folder = count_steps(config, batch, found), rundir.run_folder(config)
    rows = {"config": source or "the quickstart (no --config)"} | launch_rows(plan) | training_rows(config, plan, batch)
    if found is not None:
        rows["data"] += f", {found.row()}"
    rows |= {"steps": AT_THE_START, "learning rate": AT_THE_START}
    if counted is not None:
        rows |= {"steps": f"{counted.per_epoch:,} per epoch, {counted.total:,} in all; {_dropped(counted)}"}
        rows |= {"learning rate": schedules.describe(schedules.schedule(config.optim, counted, batch.global_))}
    rows |= {"output": f"{folder} ({rundir.look(folder)})"}
    warnings = [*plan.warnings, *(found.warnings if found else ())]
    notes = [note, *((found.note(), found.aside) if found else ())]
    if so_far := standing.look(
        config, folder, steps=counted, data=found.facts() if found else known.facts(config.data)
    ):
        rows |= {} if so_far.refused else {"this run": so_far.said}
        warnings += [f"this run {so_far.said}"] if so_far.refused else []
    lines = [f"{name:<14} {value}" for name, value in (rows | dict(also)).items()]
    lines += [f"WARNING: {warning}" for warning in warnings]
    return "\n".join([*lines, *(f"note: {told}" for told in notes if told)])


def launch_rows(plan: Plan) -> dict[str, str]:
    """Which processes there will be."""
    world = plan.world
    ranks = f"{_many(world.world_size, 'rank')} on {_many(world.num_nodes, 'node')}"
    of_them = f"this task starts {plan.spawn}, the first is rank={world.rank}/{world.world_size}"
    return {
        "launcher": plan.launcher,
        "world": ranks + (f", {of_them}" if world.world_size > 1 else ""),
        "hosts": ", ".join(plan.hosts) or "not known before they meet",
        "device": plan.device,
    }


def training_rows(config: RunConfig, plan: Plan, batch: Batches) -> dict[str, str]:
    """What they will do."""
    data, optim = config.data, config.optim
    shares = {
        "optim.weight_decay": f"weight decay {optim.weight_decay:g}",
        "optim.momentum": f"momentum {optim.momentum:g}",
    }
    without = idle.without_effect(config)
    optimizer = [optim.name, *(words for key, words in shares.items() if key not in without)]
    auto = "fp32 (auto, on the CPU)" if plan.device == "cpu" else "bf16 where the GPUs have it (auto)"
    return {
        "data": known.row(data),
        "model": _with(config.model.name, config.model.args),
        "precision": auto if config.train.precision == "auto" else config.train.precision,
        "global batch": str(batch) + _or_more(config, plan),
        "reproducible": bitwise.describe(config.train),
        "optimizer": _with(", ".join(optimizer), optim.args),
    }


def _or_more(config: RunConfig, plan: Plan) -> str:
    searched = plan.device == "cuda" and config.train.micro_batch_size == "auto" and config.train.parallel != "dp"
    return "; the start looks for the largest micro batch that fits (auto)" if searched else ""


def _with(name: str, args: Mapping[str, Any]) -> str:
    """A name with its arguments, as the file writes them."""
    return f"{name} {show(dict(args))}" if args else name


def _dropped(counted: Steps) -> str:
    if counted.dropped == 1:
        return "the last sample of an epoch is left out"
    return (
        f"the last {counted.dropped:,} samples of an epoch are left out" if counted.dropped else "no sample is left out"
    )


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
