"""A script: kill a save in each of its system calls, and print for each as JSON what is found afterwards.

Usage: killed_saves.py FOLDER STEP KEEP VALUE. FOLDER holds the checkpoints to begin with; each save works on a copy.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import torch
from calls import die, intercepted

from train.checkpoint import checkpoint, shelf


def main(original: Path, step: int, keep: int, value: float) -> None:
    for call in itertools.count(1):
        folder = original.with_name(f"killed-in-{call}")
        shutil.copytree(original, folder)
        status = killed_in(call, folder, step, keep, value)
        before = looked_at(folder)
        swept = shelf.sweep(folder)
        left = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
        found = {"status": status, "found": before, "again": looked_at(folder), "swept": swept, "left": left}
        print(json.dumps({"call": call} | found))
        if status == 0:
            return


def killed_in(call: int, folder: Path, step: int, keep: int, value: float) -> int:
    """Save in a child that dies in `call`; how it ended."""
    child = os.fork()
    if not child:
        with intercepted(die(call)):
            checkpoint.save(folder, step=step, tensors={"model": {"w": torch.full((4,), value)}}, state={}, keep=keep)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def looked_at(folder: Path) -> list[float]:
    """[step, weight] of the checkpoint that a start would take."""
    committed = checkpoint.newest(folder)
    if committed is None:
        return []
    return [committed.step, float(checkpoint.load(committed)[0]["model"]["w"][0])]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
