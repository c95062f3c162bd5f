"""Rows of docs/evidence/failures.md about what is read: numbers that go wrong, files that lie, downloads, memory."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import servers
from checkpoints import readdress
from publishing import DRIVER, stand_in, write_table
from stage import TINY, TRAIN, command, finished, train, verdict
from trials import Trial

Row = Callable[[int, Path], Trial]
# A file, and what the error must name.
WRONG_TYPE = {
    "optim: {lr: fast}": "optim.lr",
    "train: {epochs: 1.5}": "train.epochs",
    "train: {tf32: no}": "train.tf32",
    "run: {seed: 12:30:00}": "run.seed",
}
UNKNOWN = {"optim: {learning_rate: 1}": "learning_rate", "trian: {epochs: 1}": "train", "train: {epoch: 1}": "epochs"}
TWICE = {"optim: {lr: 0.1}\noptim: {lr: 0.2}": "optim", "optim:\n  lr: 0.1\n  lr: 0.2": "lr"}
PYTHON = {
    "run: {name: !!python/object/apply:os.system ['touch ran']}": "python",
    "!!python/name:os.system '': 1": "python",
}
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)  # Debian's
NINE = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
BOMB = "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]", *NINE])


def spoilt(
    site: str, action: str, code: int, *words: str, settings: tuple[str, ...] = (), rank: int | None = None
) -> Row:
    """Rows 11 to 13 and 39: a value goes wrong on one rank."""

    def row(seed: int, folder: Path) -> Trial:
        ranks = 2 if rank or seed % 2 == 0 else 1
        who = seed // 2 % ranks if rank is None else rank
        fault = f"{site}:{who}:{3 + seed % 4}:{action}"
        ended = train(folder, *TINY, *settings, ranks=ranks, FAULT=fault)
        told = (word.format(rank=who, ranks=ranks) for word in words)
        return verdict(ended, code, *told, injector=f"FAULT={fault}", process=f"rank {who}", folder=folder, kept=2)

    return row


def spike(seed: int, folder: Path) -> Trial:
    """Row 12: warn goes on, rollback goes back once."""
    policy = ("warn", "rollback")[seed % 2]
    fault = "loss:0:30:x1e3"
    words = (*TINY, "train.epochs=10", "eval.every_epochs=10", f"train.spike={policy}")
    ended = train(folder, *words, FAULT=fault)
    return verdict(
        ended, 0, "loss", injector=f"FAULT={fault}, train.spike={policy}", process="rank 0", folder=folder, kept=40
    )


def refused_config(files: Mapping[str, str], code: int) -> Row:
    """Rows 46 to 50: `train --config` of a file that cannot mean what it says."""

    def row(seed: int, folder: Path) -> Trial:
        text, word = list(files.items())[seed % len(files)]
        (folder / "bad.yaml").write_text(text + "\n")
        started = command(folder, sys.executable, "-m", "train", "--device", "cpu", "--config", "bad.yaml")
        also = {"nothing is written": not (folder / "runs").exists(), "nothing ran": not (folder / "ran").exists()}
        return verdict(started.ended(30), code, word, "fix:", injector="a file", process="the config", also=also)

    return row


class Evil:
    """Becomes, where it is unpickled without care, a file called `ran`."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran",)


def malicious(seed: int, folder: Path) -> Trial:
    """Row 51: weights and data that would run code."""
    import torch

    if seed % 2:
        torch.save({"state": Evil()}, folder / "evil.pt")
        words = ("model.weights=evil.pt",)
    else:
        (folder / "evil.pt").write_bytes(pickle.dumps({"images": Evil()}))
        words = ("data.name=tensor", "data.root=evil.pt", "data.samples=10000")
    ended = train(folder, *TINY, *words)
    also = {"nothing was executed": not (folder / "ran").exists()}
    return verdict(
        ended, 77, "evil.pt", injector="a crafted file", process=words[0].split("=")[0], folder=folder, also=also
    )


def links(seed: int, folder: Path) -> Trial:
    """Row 52: a manifest with a path in it, and links where files belong."""
    checkpoints = finished(folder)
    newest = max(checkpoints.glob("step-*"))
    if seed % 3 == 0:
        readdress(newest, "model.safetensors", "../../../outside.safetensors")
    elif seed % 3 == 1:
        (newest / "model.safetensors").rename(folder / "outside")
        (newest / "model.safetensors").symlink_to(folder / "outside")
    else:
        checkpoints.rename(folder / "elsewhere")
        checkpoints.symlink_to(folder / "elsewhere")
    ended = train(folder, *TINY, "train.epochs=3")
    also = {"nothing outside was touched": (folder / "outside").exists() or seed % 3 != 1}
    return verdict(ended, 77, "fix:", injector="ln -s, ..", process="a checkpoint", also=also)


def skewed(seed: int, folder: Path) -> Trial:
    """Row 53: the second node's clock is wrong; only a warning comes of it."""
    off = ("+3600s", "-90s", "+5s")[seed % 3]
    fake = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": off}
    place = ("--nodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(24_000 + seed))
    line = (*TRAIN, "--device", "cpu", *place)
    second = command(folder, *line, "--node-rank", "1", *TINY, **fake)
    ended = command(folder, *line, "--node-rank", "0", *TINY).ended()
    also = {"the other node ends well": second.ended().code == 0}
    return verdict(
        ended, 0, "clocks differ", injector=f"libfaketime {off}", process="node 1", folder=folder, kept=8, also=also
    )


def no_faketime() -> str | None:
    """Why no clock can be wrong here; None where one can."""
    return None if FAKETIME else "machine: libfaketime is not installed"


def fetching(folder: Path, url: str) -> tuple[str, ...]:
    """`train data fetch` with a made-up data set in place of the published one."""
    return (
        *(sys.executable, "-c", DRIVER, str(folder / "table.json"), "data", "fetch"),
        *("data.name=cifar10", "data.root=data", f"data.mirror={url}"),
    )


def fetched_by_many(seed: int, folder: Path) -> Trial:
    """Row 44: one downloads, the others wait."""
    table, files = stand_in("cifar10")
    write_table(folder / "table.json", {"cifar10": table})
    with servers.serving(files, servers.slowly) as server:
        started = [command(folder, *fetching(folder, server.url)) for _ in range(3 + seed % 2)]
        ended = [one.ended(60) for one in started]
        asked = len(server.asked)
    worst = max(ended, key=lambda one: abs(one.code))
    also = {f"it was asked for once ({asked})": asked == len(table)}
    return verdict(worst, 0, injector="several processes, a slow server", process="train data fetch", also=also)


def download_killed(seed: int, folder: Path) -> Trial:
    """Row 45: what a killed download leaves is not taken for data."""
    table, files = stand_in("cifar10")
    write_table(folder / "table.json", {"cifar10": table})
    with servers.serving(files, servers.slowly) as server:
        first = command(folder, *fetching(folder, server.url))
        first.until(lambda: bool(server.asked), "the request")
        time.sleep(random.Random(seed).uniform(0, 0.3))
        first.send(signal.SIGKILL)
        first.ended(30)
        half = not any((folder / "data" / file.path).exists() for archive in table for file in archive.files)
    with servers.serving(files, servers.whole) as server:
        ended = command(folder, *fetching(folder, server.url)).ended(60)
    whole = all((folder / "data" / file.path).exists() for archive in table for file in archive.files)
    also = {"no half data": half, "all is there after the next": whole}
    return verdict(ended, 0, injector="kill -9", process="train data fetch", also=also)


def small_shm(seed: int, folder: Path) -> Trial:
    """Row 41: shared memory too small for the data workers' batches."""
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    before = ("unshare", "--mount", "sh", "-c", mount, "sh")
    words = (*TINY, "data.loader=workers", "data.workers=2", "data.image_size=512", "train.micro_batch_size=16")
    ended = train(folder, *words, before=before)
    return verdict(
        ended, 71, "/dev/shm", "fix:", injector="unshare, a tmpfs of 1 MiB", process="/dev/shm", folder=folder
    )


ROWS: Mapping[int, Row] = {
    11: spoilt("loss", "nan", 90, "samples"),
    12: spike,
    13: spoilt("param", "flip", 78, "rank 1", settings=("train.check_replicas_every_steps=1",), rank=1),
    39: spoilt("fwd", "gpu-oom", 71, "out of GPU memory", "train.micro_batch_size="),
    41: small_shm,
    44: fetched_by_many,
    45: download_killed,
    46: refused_config(WRONG_TYPE, code=64),
    47: refused_config(UNKNOWN, code=64),
    48: refused_config(TWICE, code=64),
    49: refused_config({BOMB: "bad.yaml"}, code=64),
    50: refused_config(PYTHON, code=77),
    51: malicious,
    52: links,
    53: skewed,
}
MISSING: Mapping[int, Callable[[], str | None]] = {53: no_faketime}
