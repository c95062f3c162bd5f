"""A run's folder as training leaves it, written by hand in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train.config import load
from train.config.load import keep_last_overrides

BEGAN = 1_795_000_000.0  # seconds since 1970
CLASSES = ("cat", "dog", "<b>owl</b>")


def make_run(
    folder: Path,
    *,
    ranks: int = 2,
    speed: float = 1000.0,
    settings: Sequence[str] = (),
    training: Mapping[str, Any] | None = None,
    ending: Mapping[str, Any] | None = None,
    events: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """Ten log points, two evaluations, a checkpoint and a confusion matrix, at `speed` images per second and rank.

    settings: of the configuration. training: what differs in run.json's facts of that name.
    """
    folder.mkdir(parents=True)
    written = load.load_config(None, keep_last_overrides(["data.samples=1000", "train.precision=fp32", *settings]))
    (folder / "config.yaml").write_text(load.dump_config(written))
    (folder / "run.json").write_text(json.dumps(facts(ranks) | {"training": trained() | dict(training or {})}))
    lines = history(ranks * speed) if events is None else events
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    matrix = {"step": 20, "classes": CLASSES, "matrix": [[8, 2, 0], [1, 9, 0], [5, 0, 5]]}
    (folder / "confusion.json").write_text(json.dumps(matrix))
    if ending is not None:
        (folder / "errors").mkdir()
        (folder / "errors/exit.json").write_text(json.dumps(ending))
    return folder


def go_on(folder: Path, *, step: int, ranks: int) -> None:
    """A later start, which has left no line yet."""
    found = json.loads((folder / "run.json").read_text())
    found["starts"].append({"at": "later", "step": step, "world_size": ranks})
    found["world"]["world_size"] = ranks
    (folder / "run.json").write_text(json.dumps(found))


def found_finished(folder: Path, *, step: int) -> None:
    """A later start, which had nothing to train."""
    found = json.loads((folder / "run.json").read_text())
    found["starts"].append({"at": "later", "step": step, "idle": True, "hosts": ["login"], "launcher": "local"})
    (folder / "run.json").write_text(json.dumps(found))


def facts(ranks: int) -> dict[str, Any]:
    """run.json of one start."""
    start = {"at": "2026-11-18T00:26:40+00:00", "step": 0, "world_size": ranks, "hosts": ["node01"]}
    world = {"rank": 0, "world_size": ranks, "num_nodes": 1}
    return {
        "hosts": ["node01"],
        "launcher": "local",
        "versions": {"torch": "2.15.0"},
        "world": world,
        "starts": [start],
    }


def trained() -> dict[str, Any]:
    """What `auto` came to."""
    return {
        "device": "CPU",
        "precision": "fp32",
        "micro_batch_size": 64,
        "accumulation": 2,
        "parameters": 18_994,
        "training_images": 800,
        "held_out_images": 200,
        "classes": 3,
        "loader": "memory",
        "steps_per_epoch": 10,
        "steps": 20,
    }


def history(images_per_s: float) -> list[dict[str, Any]]:
    """metrics.jsonl of a run whose first log point is slow."""
    lines: list[dict[str, Any]] = []
    for step in range(2, 22, 2):
        rate = images_per_s / 10 if step == 2 else images_per_s
        values = {"loss": 2.0 / step, "accuracy": step / 25, "lr": 0.1, "images_per_s": rate}
        lines.append({"event": "train", "step": step, "time": BEGAN + step, "epoch": 1 + step // 11, **values})
    for step, accuracy in ((10, 0.5), (20, 0.75)):
        scores = {"accuracy": accuracy, "loss": 1 / step, "macro_f1": accuracy - 0.1, "recall": [0.8, 0.9, None]}
        lines.append({"event": "eval", "step": step, "time": BEGAN + step + 0.5, "epoch": step // 10, **scores})
    lines.append({"event": "checkpoint", "step": 20, "time": BEGAN + 21, "seconds": 0.2, "stalled_seconds": 0.015})
    return lines


def of_gpus(count: int) -> list[dict[str, Any]]:
    """Three minutes of as many GPUs."""
    return [
        {
            "event": "gpu",
            "step": minute,
            "time": BEGAN + 60 * minute,
            "gpu": f"node01/{gpu}",
            "utilisation_percent": 90 + gpu,
            "memory_bytes": 2**30 * (10 + minute),
            "power_w": 400.0,
        }
        for minute in range(3)
        for gpu in range(count)
    ]
