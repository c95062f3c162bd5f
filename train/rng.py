"""A counter-based hash turns a key (seed, epoch, sample, ...) into random numbers that are the
same on every rank and machine.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]
KeyPart = int | npt.NDArray[np.integer[Any]]

GOLDEN_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
MAX_UINT64: Final = 2**64 - 1  # what fits
# One stream for each purpose, so that no two ever share their numbers.
ORDER, AUGMENT, DROPOUT, WEIGHTS, SPLIT, SYNTHETIC, WORKERS = range(1, 8)


def random_bits(*key: KeyPart) -> UInt64Array:
    """64 well-mixed bits for every combination of the key's parts, which broadcast as numpy arrays do."""
    state: UInt64Array = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for part in key:
            state = _splitmix64_round(state ^ _as_uint64(part))
    return state


def uniform(*key: KeyPart) -> npt.NDArray[np.float32]:
    """Numbers in [0, 1) with 24 random bits."""
    return ((random_bits(*key) >> np.uint64(40)).astype(np.float32)) * np.float32(2**-24)


def permutation(count: int, *key: int) -> npt.NDArray[np.int64]:
    """All of range(count) in the key's order. Not numpy's own, which may change from one version to the next."""
    return np.argsort(random_bits(*key, np.arange(count, dtype=np.uint64)), kind="stable")


def derive_seed(*key: int) -> int:
    """One seed in [0, 2**63) for a library's generator: `random_bits`, by plain integers.

    Each micro batch wants one, and for a single number numpy takes twenty times as long.
    """
    state = 0
    for part in key:
        state = ((state ^ part) + 0x9E3779B97F4A7C15) & MAX_UINT64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MAX_UINT64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MAX_UINT64
        state ^= state >> 31
    return state >> 1


def _as_uint64(part: KeyPart) -> UInt64Array:
    return np.asarray(part % 2**64 if isinstance(part, int) else part).astype(np.uint64)


def _splitmix64_round(state: UInt64Array) -> UInt64Array:
    """One round of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    state = state + GOLDEN_GAMMA
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
