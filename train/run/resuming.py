"""Where a run goes on: the checkpoint that rank 0 chose, put into the state of every rank; and what one must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn
from torch.optim import SGD, Optimizer

from entrypoint import ExitCode, Failure
from train import files
from train.checkpoint import format
from train.config import resume_rules
from train.config.batches import StepCounts
from train.config.schema import RunConfig
from train.distributed.runtime import Runtime
from train.evaluation import early_stopping
from train.run import elsewhere, record, state
from train.run.state import State

NEVER: Final = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The step of the checkpoint to go on from, None for a fresh run; and what is worth saying of it."""

    step: int | None
    notes: tuple[str, ...]


def look(
    config: RunConfig,
    runtime: Runtime,
    folder: Path,
    net: nn.Module,
    optimizer: Optimizer,
    counted: StepCounts,
    begin: Callable[[int], None] = lambda step: None,
) -> Found:
    """Rank 0 looks into the folder of checkpoints and decides, once it was shown to take some of this size.

    begin: told the step before anything else is done with it, on rank 0.

    Raises:
        Failure: DATA for a changed configuration, a run past its end or where no checkpoint is whole; OUTPUT, IO for
            the folder.
    """
    need = 2 * size(config, net, optimizer)
    step, notes = runtime.shared(lambda: _choose(config, folder, need, counted, begin))
    return Found(step=step, notes=tuple(notes))


def start_over(config: RunConfig, runtime: Runtime, folder: Path, begin: Callable[[int], None]) -> tuple[str, ...]:
    """With checkpoint.resume never, move the earlier run aside; returns what to say of it.

    Once nothing else can keep the new one from training: until then the earlier run stays where it is.

    Raises:
        Failure: as in `files.ERRNO_MEANINGS`; what `begin` raises.
    """
    if config.checkpoint.resume != NEVER:
        return ()

    def clear_away() -> Path | None:
        aside = record.move_results_aside(folder)
        files.prepare_folder(folder / "checkpoints")  # without it a requeued job would take the run for lost
        begin(0)
        return aside

    aside = runtime.shared(clear_away)
    return (f"checkpoint.resume={NEVER}: the earlier run was moved to {aside}",) if aside else ()


def restore(
    config: RunConfig, runtime: Runtime, folder: Path, found: Found, current: State, data: Mapping[str, Any]
) -> tuple[str, ...]:
    """Set `current` to what was found; returns what is worth saying. All ranks read the same checkpoint.

    data: as `statistics.data_fingerprint` tells of it.

    Raises:
        Failure: DATA where it does not fit, was damaged since, or belongs to a training on other data.
    """
    if found.step is None:
        return found.notes
    committed = format.checkpoint_at_step(folder, found.step)
    tensors, facts = format.load_checkpoint(committed)
    with _of_a_training(committed.path):
        resume_rules.refuse_data_changes(facts.get("data"), data, folder.parent)
        state.restore(current, tensors, facts["state"])
        target = facts["config"]["eval"].get("target")
        current.held = early_stopping.restore_target_streak(config.eval, current.held, current.result, target)
        return (*found.notes, *elsewhere.notes(config, facts, runtime))


def facts(config: RunConfig, runtime: Runtime, data: Mapping[str, Any], current: State) -> dict[str, Any]:
    """What a checkpoint tells beside its tensors: the numbers of the state, and what it may be continued with."""
    told = {"state": state.facts(current), "config": asdict(config), "data": dict(data)}
    return told | elsewhere.facts(runtime)


def size(config: RunConfig, net: nn.Module, optimizer: Optimizer) -> int:
    """About how many bytes a checkpoint has."""
    inner = getattr(optimizer, "optimizer", optimizer)  # as Accelerate wraps it
    weights: int = sum(tensor.nbytes for tensor in net.state_dict().values())
    return weights * copies(inner, averaged=config.train.ema_decay is not None)


def copies(optimizer: Optimizer, *, averaged: bool) -> int:
    """How many times the size of the weights a checkpoint has: themselves, the optimizer's one or two moments of
    them, their average."""
    return 1 + (1 if isinstance(optimizer, SGD) else 2) + averaged


def _choose(
    config: RunConfig, folder: Path, need: int, counted: StepCounts, begin: Callable[[int], None]
) -> tuple[int | None, list[str]]:
    notes = [f"removed {name}, which an interrupted save left" for name in format.prepare_folder(folder, need=need)]
    if config.checkpoint.resume == NEVER:
        return None, notes
    found = format.newest_checkpoint(folder)
    if found is None:
        begin(0)
        return None, notes
    notes += [f"skipped a damaged checkpoint: {reason}" for reason in found.skipped]
    _, facts = format.load_checkpoint(found, groups=())
    with _of_a_training(found.path):
        resume_rules.refuse_config_changes(facts["config"], asdict(config))
        early_stopping.refuse_run_past_end(facts, config, counted)
    begin(found.step)
    return found.step, notes


@contextmanager
def _of_a_training(path: Path) -> Iterator[None]:
    """Turn what a state of other words stumbles over into its Failure: its hashes are right, and it is not ours."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Failure(
            f"the checkpoint {path} does not hold the state of a training",
            found=f"state.json: {type(error).__name__} {error}",
            fix=f"delete it, so that the one before is taken, or start over with checkpoint.resume={NEVER}",
            code=ExitCode.DATA,
        ) from error
