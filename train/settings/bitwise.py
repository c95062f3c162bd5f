"""train.reproducible bitwise: the number of micro batches that are added up in one tree, and the worlds that can."""

from __future__ import annotations

from typing import Final

from entrypoint import ExitCode, Failure
from train.settings.config import RunConfig, Train

WORD: Final = "bitwise"


def asked_for(train: Train) -> bool:
    """Whether the run is to have the same bits on any number of ranks."""
    return train.reproducible == WORD


def micro_batches(train: Train) -> int:
    """V: the micro batches of a global batch, the leaves of the tree."""
    assert train.micro_batch_size != "auto"  # refused before
    return train.global_batch_size // train.micro_batch_size


def worlds(train: Train) -> list[int]:
    """The numbers of ranks that give the same bits."""
    return [1 << level for level in range(micro_batches(train).bit_length())]


def describe(train: Train) -> str:
    """The mode in words, for `train check` and the start of a run."""
    if not asked_for(train):
        return "fast: the same bits on the same number of ranks and threads"
    listed = ", ".join(map(str, worlds(train)))
    return f"bitwise: {micro_batches(train)} micro batches added up in one tree, the same bits on {listed} ranks"


def refuse(config: RunConfig, world_size: int) -> None:
    """What a tree of powers of two cannot do.

    Raises:
        Failure: USAGE for keys that do not go together, FACTS for the number of ranks.
    """
    if asked_for(config.train):
        _refuse_keys(config.train)
        if world_size not in worlds(config.train):
            raise _wrong_world(config.train, world_size)


def _refuse_keys(train: Train) -> None:
    if train.micro_batch_size == "auto":
        raise _unfit("train.micro_batch_size: auto", "a number: it is what must stay the same", _sizes(train, 64))
    if train.parallel == "dp":
        raise _unfit("train.parallel: dp", "ddp or none", "set train.parallel=ddp")
    if train.compile is not False:
        why = "false: each rank would compile for itself, and the kernels may add in another order"
        raise _unfit(f"train.compile: {train.compile}", why, "set train.compile=false")
    if train.gradient_exchange != "fp32":
        why = "fp32: the tree adds up what backward gives"
        raise _unfit(f"train.gradient_exchange: {train.gradient_exchange}", why, "set train.gradient_exchange=fp32")
    if train.sync_batchnorm:
        why = "false: BatchNorm over micro batches, whose statistics are added up in the same tree"
        raise _unfit("train.sync_batchnorm: true", why, "set train.sync_batchnorm=false")
    leaves, rest = divmod(train.global_batch_size, train.micro_batch_size)
    if rest or leaves.bit_count() != 1:
        found = f"train.global_batch_size {train.global_batch_size} / train.micro_batch_size {train.micro_batch_size}"
        fix = _sizes(train, train.micro_batch_size)
        raise _unfit(f"{found} = {train.global_batch_size / train.micro_batch_size:g}", "1, 2, 4, 8, ...", fix)


def _sizes(train: Train, near: int) -> str:
    """The legal micro batch nearest to `near`."""
    whole, sizes = train.global_batch_size, []
    while True:
        sizes.append(whole)
        if whole % 2:
            return f"set train.micro_batch_size={min(sizes, key=lambda size: abs(size - near))}"
        whole //= 2


def _unfit(found: str, expected: str, fix: str) -> Failure:
    return Failure(
        "train.reproducible bitwise does not go with the other settings",
        found=found,
        expected=expected,
        fix=f"{fix}, or train.reproducible=fast",
        code=ExitCode.USAGE,
    )


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def _wrong_world(train: Train, world_size: int) -> Failure:
    leaves, legal = micro_batches(train), worlds(train)
    under = max(size for size in legal if size <= world_size)
    return Failure(
        f"train.reproducible bitwise cannot add up {leaves} micro batches on {world_size} ranks",
        found=f"{world_size} ranks",
        expected=f"one of {', '.join(map(str, legal))}",
        fix=f"start {_ranks(under)} (--procs-per-node, or srun --ntasks), or set train.reproducible=fast "
        "(in a new run: another run.name)",
        code=ExitCode.FACTS,
    )
