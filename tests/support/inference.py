"""The commands that use a trained model, each in the test's own process and as one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs import ALONE, forget_accelerate

from train import __main__ as front
from train.inference import checkpoints, evaluate, export


@contextmanager
def own_accelerate() -> Iterator[None]:
    """Accelerate as a new process has it."""
    forget_accelerate()
    try:
        yield
    finally:
        forget_accelerate()


def run_command(*words: str | Path) -> int:
    """The exit code of `train WORDS` on the CPU."""
    with own_accelerate():
        return front.run_command([*map(str, words)], {"ENTRYPOINT_DEVICE": "cpu"})


def evaluate_run(run: Path, *settings: str, **options: Any) -> int:
    """The exit code of `train eval RUN --json`; options: those of `evaluate_on_rank`."""
    checkpoint = checkpoints.choose_checkpoint(str(run))
    config, _ = checkpoints.load_config(checkpoint, None, settings)
    arguments: dict[str, Any] = {"environ": {}, "as_json": True, **options}
    with own_accelerate():
        return evaluate.evaluate_on_rank(config, checkpoint, ALONE, **arguments)


def export_run(run: Path, folder: Path, *settings: str, formats: Sequence[str] = ()) -> Path:
    """The folder with the export of a run."""
    checkpoint = checkpoints.choose_checkpoint(str(run))
    export.export_model(checkpoints.load_config(checkpoint, None, settings)[0], checkpoint, folder, formats)
    return folder
