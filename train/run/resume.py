"""A run resumes from the newest committed checkpoint; rank 0 chooses it, and every rank loads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn
from torch.optim import SGD, Optimizer

from entrypoint import ExitCode, Failure, pluralize
from train import files, plugin
from train.checkpoint import format, store
from train.config import checks, resume_rules
from train.config.batches import StepCounts
from train.config.schema import RunConfig, TrainConfig
from train.distributed.device import describe_arithmetic
from train.distributed.runtime import Runtime
from train.evaluation import early_stopping
from train.optim import ema
from train.run import record
from train.state import TrainState

NEVER: Final = "never"
RecordStart = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where a run resumes. step: of the checkpoint, None for a new run. notes: for the banner."""

    step: int | None
    notes: tuple[str, ...]


def find_resume_point(
    config: RunConfig,
    runtime: Runtime,
    checkpoints: Path,
    network: nn.Module,
    optimizer: Optimizer,
    steps: StepCounts,
    record_start: RecordStart,
) -> ResumePoint:
    """Rank 0 prepares the folder of checkpoints for saves of this size, and chooses where to resume.

    record_start: gets the step on rank 0, before anything is done with the checkpoint.

    Raises:
        Failure: DATA for a changed configuration, a run past its end, or if no checkpoint is undamaged; OUTPUT, IO for
            the folder.
    """
    bytes_needed = 2 * checkpoint_bytes(config.train, network, optimizer)
    step, notes = runtime.run_on_rank_zero(lambda: _choose_step(config, checkpoints, bytes_needed, steps, record_start))
    return ResumePoint(step=step, notes=tuple(notes))


def start_over(config: RunConfig, runtime: Runtime, folder: Path, record_start: RecordStart) -> tuple[str, ...]:
    """With checkpoint.resume=never, move the earlier run aside; returns the notes for the banner.

    It is called last: until nothing else can keep the new run from training, the earlier one stays in its place.

    Raises:
        Failure: as in `files.ERRNO_MEANINGS`; whatever record_start raises.
    """
    if config.checkpoint.resume != NEVER:
        return ()

    def move_aside() -> Path | None:
        moved_to = record.move_results_aside(folder)
        files.prepare_folder(folder / "checkpoints")  # a requeued job takes a run without this folder for lost
        record_start(0)
        return moved_to

    moved_to = runtime.run_on_rank_zero(move_aside)
    return (f"checkpoint.resume={NEVER}: the earlier run was moved to {moved_to}",) if moved_to else ()


def restore(
    config: RunConfig,
    runtime: Runtime,
    checkpoints: Path,
    resume_point: ResumePoint,
    state: TrainState,
    data_fingerprint: Mapping[str, Any],
) -> tuple[str, ...]:
    """Load the checkpoint into `state` on every rank; returns the notes for the banner.

    data_fingerprint: see `statistics.data_fingerprint`.

    Raises:
        Failure: DATA if it does not fit, was damaged in the meantime, or belongs to a training on other data.
    """
    plugin.own_code()  # remembers it as it is loaded now, for the checkpoints to come
    if resume_point.step is None:
        return resume_point.notes
    checkpoint = store.checkpoint_at_step(checkpoints, resume_point.step)
    tensors, metadata = format.load_checkpoint(checkpoint)
    with _refuse_malformed(checkpoint.path):
        resume_rules.refuse_data_changes(metadata.get("data"), data_fingerprint, checkpoints.parent)
        state.restore(tensors, metadata["state"])
        saved_target = metadata["config"]["eval"].get("target")
        state.target_streak = early_stopping.restore_target_streak(
            config.eval, state.target_streak, state.result, saved_target
        )
        changed = plugin.describe_changed_code(metadata.get("code") or {})
        shorter = describe_shorter_plan(metadata["config"]["train"], config)
        return (*resume_point.notes, *shorter, *changed, *machine_notes(config, metadata, runtime))


def describe_shorter_plan(saved: Mapping[str, Any], config: RunConfig) -> tuple[str, ...]:
    """A note for each length of the training that is smaller than the one that the checkpoint was trained for."""
    lengths = ((key, saved.get(key), getattr(config.train, key)) for key in ("epochs", "max_steps"))
    return tuple(
        f"the run was to have train.{key}={before}, and now has {current}: optim.schedule is computed for that"
        for key, before, current in lengths
        if before and current and current < before
    )


def checkpoint_metadata(
    config: RunConfig, runtime: Runtime, data_fingerprint: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """state.json of a checkpoint: the state's values, and what a resumed run is compared with."""
    code = plugin.own_code()
    return ({"code": code} if code else {}) | {
        "state": values,
        "config": asdict(config),
        "data": dict(data_fingerprint),
        "world_size": runtime.world.world_size,
        "arithmetic": describe_arithmetic(runtime.device),
    }


def checkpoint_bytes(train: TrainConfig, network: nn.Module, optimizer: Optimizer) -> int:
    """About how many bytes a checkpoint has: the weights, one or two moments of each, and their average."""
    weights: int = sum(tensor.nbytes for tensor in network.state_dict().values())
    num_moments = 1 if isinstance(optimizer, SGD) else 2
    return weights * (1 + num_moments + ema.num_copies(train))


def machine_notes(config: RunConfig, metadata: Mapping[str, Any], runtime: Runtime) -> list[str]:
    """Notes for a run that resumes with another number of ranks or on another kind of machine.

    Raises:
        Failure: LAUNCH_CONFLICT, with train.reproducible bitwise, for a machine that computes other bits.
    """
    bitwise, world_size = checks.is_bitwise(config.train), runtime.world.world_size
    current = describe_arithmetic(runtime.device)
    saved = metadata.get("arithmetic") or current  # the first versions did not save it
    changed = [key for key in current | saved if current.get(key) != saved.get(key)]
    if bitwise and changed:
        raise _other_arithmetic_failure(changed[0], saved, current)
    notes = []
    if metadata["world_size"] != world_size:
        same = "same bits" if bitwise else "same samples, same learning rates, other rounding"
        notes.append(
            f"the run goes on with {pluralize(world_size, 'rank')} instead of {metadata['world_size']}: {same}"
        )
    notes += [
        f"{key} is {current.get(key)}, and was {saved.get(key)}: numbers may round differently" for key in changed
    ]
    return notes


def _choose_step(
    config: RunConfig, checkpoints: Path, bytes_needed: int, steps: StepCounts, record_start: RecordStart
) -> tuple[int | None, list[str]]:
    removed = [*format.prepare_folder(checkpoints, need=bytes_needed), *record.remove_left_files(checkpoints.parent)]
    notes = [f"removed {name}, which an interrupted save left" for name in removed]
    if config.checkpoint.resume == NEVER:
        return None, notes
    checkpoint = store.newest_checkpoint(checkpoints)
    if checkpoint is None:
        record_start(0)
        return None, notes
    notes += checkpoint.notes
    metadata = store.read_state(checkpoint)
    with _refuse_malformed(checkpoint.path):
        resume_rules.refuse_config_changes(metadata["config"], asdict(config), checkpoints.parent)
        early_stopping.refuse_run_past_end(metadata, config, steps)
    record_start(checkpoint.step)
    return checkpoint.step, notes


def _other_arithmetic_failure(key: str, saved: Mapping[str, Any], current: Mapping[str, Any]) -> Failure:
    fix = f"set OMP_NUM_THREADS={saved.get(key)}" if key == "threads" else "use the same image on the same kind of node"
    return Failure(
        "train.reproducible bitwise cannot go on here: the numbers would round differently",
        found=f"{key}: {current.get(key)}",
        expected=f"{key}: {saved.get(key)}, as in the checkpoint",
        fix=f"{fix}; or start a new run from its weights: model.weights=RUN and another run.name",
        code=ExitCode.LAUNCH_CONFLICT,
    )


@contextmanager
def _refuse_malformed(path: Path) -> Iterator[None]:
    """Turns what a malformed state.json raises into a Failure: its hash is right, but no training wrote it."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Failure(
            f"the checkpoint {path} does not hold the state of a training",
            found=f"state.json: {type(error).__name__} {error}",
            fix=store.DAMAGED_FIX,
            code=ExitCode.DATA,
        ) from error
