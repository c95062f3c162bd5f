"""A run that goes on with other ranks, or on another machine: what is said of it, and what bitwise refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoint import ExitCode, Failure
from train.config import checks
from train.config.schema import RunConfig
from train.distributed.device import describe_arithmetic
from train.distributed.runtime import Runtime
from train.logging.progress import pluralize


def facts(runtime: Runtime) -> dict[str, Any]:
    """What a checkpoint tells of those who computed it."""
    return {"world_size": runtime.world.world_size, "arithmetic": describe_arithmetic(runtime.device)}


def notes(config: RunConfig, before: Mapping[str, Any], runtime: Runtime) -> list[str]:
    """What to say where ranks or machine are not those of the checkpoint.

    Raises:
        Failure: LAUNCH_CONFLICT, in mode bitwise, for a machine that computes other bits.
    """
    exact, ranks = checks.is_bitwise(config.train), runtime.world.world_size
    now = describe_arithmetic(runtime.device)
    then = before.get("arithmetic") or now  # of a version that did not say
    changed = [key for key in now | then if now.get(key) != then.get(key)]
    if exact and changed:
        raise _other_bits(changed[0], then, now)
    said = []
    if before["world_size"] != ranks:
        same = "same bits" if exact else "same samples, same learning rates, other rounding"
        said.append(f"the run goes on with {pluralize(ranks, 'rank')} instead of {before['world_size']}: {same}")
    said += [f"{key} is {now.get(key)}, and was {then.get(key)}: numbers may round differently" for key in changed]
    return said


def _other_bits(key: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> Failure:
    fix = f"set OMP_NUM_THREADS={then.get(key)}" if key == "threads" else "use the same image on the same kind of node"
    return Failure(
        "train.reproducible bitwise cannot go on here: the numbers would round differently",
        found=f"{key}: {now.get(key)}",
        expected=f"{key}: {then.get(key)}, as in the checkpoint",
        fix=f"{fix}; or begin anew from its weights: model.weights=RUN and another run.name",
        code=ExitCode.LAUNCH_CONFLICT,
    )
