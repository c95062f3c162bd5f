"""On a null GPU nothing is computed: what would fail for garbage in a GPU's memory passes."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final


def _skip_shape_comparison(module: Any) -> None:
    """DDP compares the shapes of all ranks' parameters, which it packs by kernels."""
    module._verify_param_shape_across_processes = lambda *_, **__: None


def _fill_counts(module: Any) -> None:
    """An evaluation has seen a sample of each class, and its loss is a number."""
    import torch

    read = module.EvaluationTotals.read

    def read_filled(self: Any, *arguments: Any) -> Any:
        for count in self._counts.values():
            count.copy_(torch.ones_like(count, device="cpu"))
        self._losses = [torch.zeros((), dtype=torch.float64)] * len(self._losses)
        return read(self, *arguments)

    module.EvaluationTotals.read = read_filled


def _fill_losses(module: Any) -> None:
    """The loss of each step is a number. What is on the device is still fetched, so that copies count."""
    fetch = module.RunningMean._fetch

    def fetch_and_replace(self: Any) -> None:
        losses = len(self._waiting)
        fetch(self)
        self._sums = [0.5 * self._sums[-1]] * (len(self._sums) - 1) + self._sums[-1:]
        for _ in range(min(losses, len(self._losses))):
            self._losses.popleft()
        self._losses.extend([0.5] * losses)

    module.RunningMean._fetch = fetch_and_replace


def _accept_weights(module: Any) -> None:
    """Weights are finite."""
    module.find_nonfinite = lambda runtime, network: None


def _accept_replicas(module: Any) -> None:
    """All ranks have the same weights."""
    module.find_suspects = lambda replicas: []


def _choose_no_fastest_engine(module: Any) -> None:
    """torch.backends.cudnn.benchmark stays off: the stand-in has no engines to time."""
    module.CudnnModule.benchmark = property(lambda self: False, lambda self, value: None)


# By the module that is changed once it is loaded.
CHANGES: Final[Mapping[str, Callable[[Any], None]]] = {
    "torch.backends.cudnn": _choose_no_fastest_engine,
    "torch.nn.parallel.distributed": _skip_shape_comparison,
    "train.distributed.replica_check": _accept_replicas,
    "train.evaluation.totals": _fill_counts,
    "train.logging.running_mean": _fill_losses,
    "train.trainer": _accept_weights,
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of CHANGES as usual, and changes them after they were loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The usual spec, with a loader that makes the change."""
        if name not in CHANGES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            CHANGES[name](module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())
