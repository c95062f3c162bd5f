"""A handle on a run's folder: what a training on the cluster left there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from entrypoint.run_errors import ExitRecord, RunErrors
from train.checkpoint import store
from train.logging.metrics_logger import METRICS_FILE, read_events

# Ten steps of the same training for any world of up to six: 48 = 6 ranks x micro batch 4 x accumulation 2.
TEN_STEPS = """
run: {name: run, output_dir: runs}
launch: {device: cpu}
data: {name: synthetic, samples: 960, image_size: 16, loader: memory}
model: {name: small_cnn}
optim: {name: sgd, lr: 0.05, momentum: 0.9, schedule: constant, warmup_epochs: 0}
train: {epochs: 1, max_steps: 10, global_batch_size: 48, micro_batch_size: 4, precision: fp32}
log: {every_steps: 1, tensorboard: false}
"""
# The same for as long as nobody stops it.
ENDLESS = TEN_STEPS.replace("epochs: 1, max_steps: 10", "epochs: 100000") + "eval: {every_epochs: 100000}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The folder of one run; it may not be there yet."""

    folder: Path

    @property
    def record(self) -> dict[str, Any]:
        """run.json; empty while there is none."""
        path = self.folder / "run.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def ending(self) -> ExitRecord | None:
        """errors/exit.json."""
        return RunErrors.in_run(self.folder).read_exit()

    def logged(self) -> list[int]:
        """The steps in metrics.jsonl that have a loss, in the order of the file."""
        path = self.folder / METRICS_FILE
        events = read_events(path) if path.exists() else ()
        return [event["step"] for event in events if event["event"] == "train"]

    def committed(self) -> int | None:
        """The step of the newest checkpoint whose hashes are right."""
        found = store.newest_checkpoint(self.folder / "checkpoints")
        return found.step if found else None

    def weights(self, step: int, group: str = "model") -> dict[str, Any]:
        """The arrays after `step`: the model's, or another group's."""
        return dict(load_file(self.folder / "checkpoints" / f"step-{step:08d}" / f"{group}.safetensors"))
