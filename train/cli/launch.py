"""This module checks the config, plans the launch of this task, and starts and awaits its ranks.

It also holds what all commands share: the argument parser, and the handlers of stop signals before
the ranks are started.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Final, NoReturn

from entrypoint import (
    NO_DRIVER_SOURCE,
    ExitCode,
    Failure,
    HangTimeouts,
    LaunchOptions,
    Plan,
    RunErrors,
    StrictArgumentParser,
    SupervisionPolicy,
    engines,
    make_plan,
    parse_launch_options,
    run_plan,
    run_preflight,
    shell_command,
    unmounted_path_failure,
    write_styled,
)
from train import files
from train.checkpoint import store
from train.config import checks, environment, load, models
from train.config.batches import BatchSizes, compute_batch_sizes, count_steps
from train.config.resolved import resolve_learning_rate
from train.config.schema import RunConfig
from train.config.strategies import STRATEGIES
from train.data import download, registry
from train.data.shards import staging
from train.names import nearest_name
from train.optim import schedule
from train.run.folder import newest_checkpoint, run_folder


def check_config(config: RunConfig, world_size: int, device: str | None = None) -> BatchSizes:
    """Refuse a config that cannot work. Only cheap checks: they run in every task, on every node.

    device: as of `checks.refuse_conflicts`.

    Raises:
        Failure: USAGE for batches that do not divide or are too large and for keys that do not go together, NO_INPUT
            for data that is not there.
    """
    checks.refuse_conflicts(config, world_size, device)
    checks.refuse_bitwise_conflicts(config, world_size)
    checks.refuse_forbidden_arguments(config.model)
    schedule.schedule_arguments(config.optim)
    resolve_learning_rate(config)
    registry.refuse_inapplicable_keys(config.data)
    local = registry.find_source(config.data.name).origin == "files" and not config.data.download
    if local and (failure := unmounted_path_failure("data.root", Path(config.data.root))):
        raise failure
    if config.data.download:
        download.refuse_unpublished(config.data)
    registry.refuse_unused_key(config.data, "group")
    registry.refuse_unusable_cache(config.data, writes=False)
    shape = registry.configured_shape(config.data)
    dims = None if shape is None else len(shape.size)
    checks.refuse_dimension_mismatch(config.model.name, dims, f"data.name: {config.data.name}")
    refuse_missing_weights(config)
    registry.refuse_cached_evaluation_size(config.data, config.eval.image_size)
    batch = compute_batch_sizes(config.train.global_batch_size, config.train.micro_batch_size, world_size)
    counts = registry.find_source(config.data.name).count(config.data)
    if counts is not None:  # else a start counts them
        count_steps(batch, counts.training, epochs=config.train.epochs, max_steps=config.train.max_steps)
    return batch


def refuse_missing_weights(config: RunConfig) -> None:
    """Refuse missing model.weights, unless the run resumes: then its checkpoint has the weights.

    Raises:
        Failure: NO_INPUT.
    """
    path, resumes = config.model.weights, config.checkpoint.resume == "auto"
    if path is None or models.weights_path(path).exists():
        return
    if resumes and any(run_folder(config).glob("checkpoints/step-*")):
        return
    if models.is_weights_name(path):
        raise Failure(
            f"the weights {path} are not in the folder {models.WEIGHTS_FOLDER}",
            found=f"no {models.weights_file_stem(path)}.safetensors, and no .pth of that name, "
            f"in {Path(models.WEIGHTS_FOLDER).absolute()}",
            fix=f"run `{shell_command('train weights fetch', path)}` where there is a network (without one it says "
            "which file to bring), or name a file",
            code=ExitCode.NO_INPUT,
        )
    fix = f"{files.did_you_mean(Path(path))}correct model.weights, or leave it out: then weights start at random"
    if models.is_weights_name(config.model.name) and re.search(WEIGHTS_WORDS, path, re.IGNORECASE):
        fetch = shell_command("train weights fetch", config.model.name)
        fix = f"run `{fetch}` where there is a network, and set model.weights={config.model.name}"
    elif re.search(WEIGHTS_WORDS, path, re.IGNORECASE):
        fix = f"{config.model.name} has no published weights: set model.name to one of torchvision's or timm's models"
    missing = Failure(
        f"there is nothing at model.weights {path}",
        found=f"looked from {Path.cwd()}",
        fix=fix,
        code=ExitCode.NO_INPUT,
    )
    raise unmounted_path_failure("model.weights", Path(path)) or missing


# What other tools take for "the published weights of this model".
WEIGHTS_WORDS: Final = r"^(true|yes|default|auto|pretrained)$|imagenet[^/]*$|_weights\.\w+$"


Arguments = Mapping[str, Mapping[str, Any]]  # the names of each, with a space between -> what `add_argument` takes


def add_arguments(parser: argparse._ActionsContainer, arguments: Arguments) -> None:
    """Add these arguments to a parser, or to a group of one."""
    for names, options in arguments.items():
        parser.add_argument(*names.split(), **options)


class TrainArgumentParser(StrictArgumentParser):
    """An argparse parser whose errors are Failures; argparse itself would exit with code 2."""

    words: Sequence[str] = ()

    def __init__(self, *, arguments: Arguments = MappingProxyType({}), **options: Any) -> None:
        super().__init__(**options)
        add_arguments(self, arguments)

    def parse_intermixed_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As argparse's. The words are kept for the fix of an error."""
        self.words = list(args or ())
        return super().parse_intermixed_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise a Failure (USAGE)."""
        fix = f"see `{shell_command(self.prog)} --help`; settings are written without dashes: section.key=value"
        if unknown := re.search(r"unrecognized arguments: (-+([\w.-]+)\S*)", message):
            following = self.words[[*self.words, unknown[1]].index(unknown[1]) + 1 :]
            name = unknown[2].replace("-", "_")
            close = nearest_name(f"--{unknown[2]}", self._option_string_actions, 0.75)
            setting = load.FIXES_FOR_OTHER_TOOLS.get(name) or load.suggest_setting(unknown[1], following)
            fix = f"write {close}" if close else setting or fix
        raise self.choice_failure(message) or Failure(f"command line: {message}", fix=fix, code=ExitCode.USAGE)


STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)


# What a command has not done yet when a signal stops it. The ranks of a training save and report it themselves.
STOPPED_BEFORE: Final = {
    "predict": "before all images were answered; each printed line is complete",
    "export": "before the model was written",
    "report": "before the report was written",
    "data": "before the data was looked through",
    "weights": "before the weights were fetched",
    "eval": "before the evaluation began",
    "check": "before the plan was made",
    "find-lr": "before a learning rate was found",
    "where": "before the folder was found",
}


def stop_handler(words: Sequence[str]) -> Callable[[int, FrameType | None], NoReturn]:
    """The stop signals' handler for the command in these command-line words, or for a training."""
    undone = next((STOPPED_BEFORE[word] for word in words if word in STOPPED_BEFORE), "before the training began")
    return lambda signum, frame: raise_stopped(signum, frame, undone)


def raise_stopped(signum: int, frame: FrameType | None, undone: str = "before the training began") -> NoReturn:
    """Exit after a stop signal before any rank was started. It may come twice (from Slurm and Apptainer)."""
    ignore_stop_signals()
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    what = f"stopped by {signal.Signals(signum).name} {undone}"
    raise Failure(what, fix="start the same command again", code=ExitCode.STOPPED)


def ignore_stop_signals() -> None:
    """From now on, ignore stop signals: another process handles them, or they come too late."""
    handle_stop_signals(lambda signum, frame: None)  # not SIG_IGN, which means that the caller ignores the signal


def handle_stop_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    """Let `handler` handle stop signals, except a terminal's that the caller ignores (`nohup`, `train &`)."""
    for signum in STOP_SIGNALS:
        if signum not in (signal.SIGINT, signal.SIGHUP) or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, handler)


def launch_options(arguments: argparse.Namespace, config: RunConfig, environ: Mapping[str, str]) -> LaunchOptions:
    """The launch options: the command line wins over ENTRYPOINT_* variables, and those over the file."""
    procs = config.launch.procs_per_node
    number = None if procs == "auto" else procs
    return parse_launch_options(arguments, environ, device=config.launch.device, procs_per_node=number)


def process_environment(environ: Mapping[str, str]) -> MutableMapping[str, str]:
    """This process's environment, so that libraries do not see variables of other ranks; a copy in tests."""
    return os.environ if environ is os.environ else dict(environ)


def rank_environment(plan: Plan, environ: Mapping[str, str], *, download: bool) -> MutableMapping[str, str]:
    """Give this process, which computes itself, the environment of a rank of the plan. download: data.download."""
    process = process_environment(environ)
    process["OMP_NUM_THREADS"] = plan.num_threads(environ)
    environment.remove_conflicting_variables(process, download=download)
    environment.limit_openmp_spinning(process)
    return process


def plan_launch(config: RunConfig, options: LaunchOptions, environ: Mapping[str, str]) -> Plan:
    """Plan what this task starts. With train.parallel=dp or none it is one process, unless the user sets a number.

    Raises:
        Failure: as `make_plan`.
    """
    plan = make_plan(environ, options)
    if plan.spawn == 1 or options.procs_per_node or not STRATEGIES[config.train.parallel].is_single_process:
        return plan
    # dp uses all GPUs that it sees, so the second plan's warnings about unused GPUs would be wrong.
    alone = make_plan(environ, replace(options, procs_per_node=1))
    return replace(alone, warnings=plan.warnings) if config.train.parallel == "dp" else alone


def refuse_cpu_after_gpu(config: RunConfig, plan: Plan) -> None:
    """Refuse to resume a run of GPUs on the CPU, unless the user says so: this node lacks its driver.

    Raises:
        Failure: NODE.
    """
    if plan.sources.get("device") != NO_DRIVER_SOURCE or config.checkpoint.resume == "never":
        return
    with suppress(OSError, ValueError, LookupError, TypeError):  # none, or the ranks say what is wrong with it
        checkpoints = store.list_checkpoints(run_folder(config) / "checkpoints")
        path = checkpoints[max(checkpoints)]
        device = str(files.read_json(path / store.STATE_FILE)["arithmetic"]["device"])
        if not device.startswith("CPU"):
            raise Failure(
                "this run has trained on a GPU, and none can be used here",
                found=f"{path}: {device}; here: {NO_DRIVER_SOURCE}",
                fix=f"start it on a node with GPUs, in a container with {engines.GPU_OPTIONS}; or go on with "
                "--device cpu, slower and with other rounding",
                code=ExitCode.NODE,
            )


def add_config_warnings(plan: Plan, config: RunConfig) -> Plan:
    """Add the warnings about the configuration to the plan."""
    own = (*checks.conflict_warnings(config), *schedule.fine_tuning_warnings(config))
    return replace(plan, warnings=(*plan.warnings, *own, *registry.unused_key_warnings(config)))


def refuse_invalid_launch(config: RunConfig, plan: Plan, environ: Mapping[str, str]) -> None:
    """Refuse what a task can check before it starts or writes anything. Ranks check the rest.

    Raises:
        Failure: as `check_config`, `staging.refuse_unusable_stage` and `environment.refuse_contradicting_variables`.
    """
    batch = check_config(config, plan.world.world_size, plan.device)
    staging.refuse_unusable_stage(config.data)
    registry.refuse_unusable_cache(config.data, writes=True)
    auto = None if plan.device == "cuda" else "fp32"
    precision = auto if config.train.precision == "auto" else config.train.precision
    environment.refuse_contradicting_variables(
        environ, device=plan.device, precision=precision, accumulation=batch.accumulation
    )


def print_preflight_findings(plan: Plan, config: RunConfig, environ: Mapping[str, str]) -> None:
    """Print the findings of the short doctor: what would slow or break this training, each with a fix.

    Raises:
        Failure: as `run_preflight`.
    """
    terminal = sys.stderr.fileno() if sys.stderr.isatty() else None
    data, computed = config.data, registry.find_source(config.data.name).origin == "computed"
    unused = data.loader == "memory" or (data.loader == "auto" and computed)
    workers = None if unused or data.workers == "auto" else data.workers  # None: none, or chosen later
    for line in run_preflight(plan, environ, workers=workers, terminal=terminal):
        write_styled(f"{line}\n", sys.stderr)


def start_ranks(
    plan: Plan,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    folder: Path,
    config: RunConfig,
    stop_signals: list[int] | None = None,
    **supervision: Any,
) -> int:
    """Run one worker per rank of the plan, with these arguments; returns the exit code. Logs go into `folder`.

    stop_signals: stop signals are appended. supervision: of `SupervisionPolicy`, what the config does not say.

    Raises:
        Failure: as `run_plan`.
    """
    stop_signals = [] if stop_signals is None else stop_signals
    # run_plan installs its own handlers, then restores these: a late signal must not change the exit code.
    handle_stop_signals(lambda signum, frame: stop_signals.append(signum))
    command = [sys.executable, "-m", "train.worker", *arguments]
    policy = replace(supervision_policy(config, folder), **supervision)
    return run_plan(
        plan, command, environ, log_dir=folder / "logs", foreign=False, policy=policy, stop_signals=stop_signals
    )


def supervision_policy(config: RunConfig, folder: Path) -> SupervisionPolicy:
    """How long ranks may be silent, how often they are restarted, and where their failures are written."""
    timeouts = config.launch.timeouts
    limits = HangTimeouts(
        start=timeouts.start,
        step=None if timeouts.step == "auto" else timeouts.step,
        evaluation=timeouts.evaluation,
        save=timeouts.save,
        data=timeouts.data,
    )
    return SupervisionPolicy(
        limits=limits,
        errors=RunErrors.in_run(folder),
        kept=partial(newest_checkpoint, folder),
        restarts=config.launch.max_restarts,
    )
