"""Small checkpoints, and ways to damage them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from train.checkpoint import format, manifest, store

DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a flipped bit": lambda path: flip(path / "model.safetensors"),
    "a flipped bit in the header": lambda path: flip(path / "model.safetensors", at=20),
    "a flipped bit in the state": lambda path: flip(path / "state.json"),
    "a flipped bit in the manifest": lambda path: flip(path / "manifest.json"),
    "cut short": lambda path: (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-1]),
    "empty": lambda path: (path / "model.safetensors").write_bytes(b""),
    "a file missing": lambda path: (path / "model.safetensors").unlink(),
    "the state missing": lambda path: (path / "state.json").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "another step's": lambda path: path.rename(path.with_name("step-00000031")),
}


def saved(folder: Path, *steps: int, keep: int = 9, value: float | None = None) -> Path:
    """Checkpoints of `steps` in `folder`, each with its step (or `value`) as weights and in its state; the last one."""
    for step in steps:
        weights = torch.full((4,), float(step) if value is None else value)
        tensors = {"model": {"w": weights}}
        path = format.save_checkpoint(folder, step=step, tensors=tensors, metadata={"step": step}, keep=keep)
    return path


def flip(path: Path, at: int = -3) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def reseal(path: Path, **changes: Any) -> None:
    """Change a checkpoint's manifest and give it the right hash again."""
    contents = manifest.from_bytes((path / "manifest.json").read_bytes())
    (path / "manifest.json").write_bytes(manifest.to_bytes(replace(contents, **changes)))


def readdress(path: Path, old: str, new: str) -> None:
    """Let a checkpoint's manifest name `new` where it named `old`, with the right hash."""
    inner = json.loads((path / "manifest.json").read_bytes())["manifest"]
    reseal(path, files={new if n == old else n: manifest.FileEntry(**entry) for n, entry in inner["files"].items()})


def plant(path: Path, name: str, data: bytes) -> None:
    """Put a file into a checkpoint and list it with the right hashes: what anyone who may write there can do."""
    (path / name).write_bytes(data)
    files = [file for file in path.iterdir() if file.name != "manifest.json"]
    reseal(path, files={file.name: manifest.make_file_entry(file.read_bytes()) for file in files})


def weight(folder: Path) -> tuple[int, float] | None:
    """The step and the weight that a start would take."""
    committed = store.newest_checkpoint(folder)
    return committed and (committed.step, format.load_checkpoint(committed)[0]["model"]["w"][0].item())


def hidden(folder: Path) -> list[str]:
    """What a writer that was interrupted would leave."""
    return [path.name for path in folder.rglob(".*")]
