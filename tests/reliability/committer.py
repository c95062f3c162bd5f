"""A process without torch that commits small checkpoints, each in a child that waits until a tracer has attached.

Reads JSON lines from its input: {folder, step, keep}, after which the child writes its number; then a line to let the
child go, after which it writes how the child ended: 0 for done, a failure's code, or minus the signal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from entrypoint import Failure
from train import files as refusals
from train.checkpoint import manifest, store
from train.checkpoint.manifest import Manifest
from train.config.schema import CheckpointConfig

SIZES = {"model.safetensors": 20_000, "optimizer.safetensors": 20_000, "state.json": 5_000}


def content(step: int) -> dict[str, bytes]:
    """The files of a checkpoint, other ones for every step."""
    return {name: f"{name} {step} ".encode().ljust(size, b"x") for name, size in SIZES.items()}


def save(folder: Path, step: int, keep: int, *, again: int = 0) -> None:
    """What the training's save does once its tensors are bytes. `again` changes the content of the same step."""
    files = content(step + again)
    entries: Mapping[str, manifest.FileEntry] = {name: manifest.make_file_entry(data) for name, data in files.items()}
    contents = Manifest(format=manifest.FORMAT_VERSION, step=step, torch=store.TORCH_VERSION, files=entries)
    final = folder / store.step_folder_name(step)
    with refusals.translate_os_errors(final):
        if not store.is_committed(final, contents):
            store.commit_checkpoint(final, files, contents)
    store.prune_checkpoints(folder, CheckpointConfig(keep=keep), trusted=step)


def _in_a_child(told: Mapping[str, int], folder: Path) -> tuple[int, int]:
    """(number of the child, descriptor whose end lets it go). The child writes its number once it only waits, or the
    tracer would sometimes count a call from before the commit."""
    ready, go = os.pipe()
    child = os.fork()
    if child:
        os.close(ready)
        return child, go
    os.close(go)
    print(os.getpid(), flush=True)
    os.read(ready, 1)
    try:
        save(folder, **told)
    except Failure as failure:
        os._exit(int(failure.code))
    except BaseException:
        os._exit(70)
    os._exit(0)


def main() -> None:
    """Until the input ends."""
    if "torch" in sys.modules:
        raise SystemExit("a commit must not need torch")
    for line in iter(sys.stdin.readline, ""):
        told = json.loads(line)
        child, go = _in_a_child({"step": told["step"], "keep": told["keep"], "again": 1}, Path(told["folder"]))
        sys.stdin.readline()
        os.close(go)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
