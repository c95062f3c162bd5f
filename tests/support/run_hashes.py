"""Trains a small run of each kind and prints what came out as JSON: a change that moves code changes no bit of it.

python tests/support/run_hashes.py > before.json        in a checkout of the old code
python tests/support/run_hashes.py --against before.json    in one of the new: ends with 1 where anything differs
python tests/support/run_hashes.py --only bitwise           only the runs whose name holds that word
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

COMMON = (
    "train.epochs=2 data.samples=640 data.image_size=8 log.every_steps=2 checkpoint.every_steps=4 eval.every_epochs=1 "
    "optim.lr=0.1"
)
BITWISE = "train.reproducible=bitwise train.micro_batch_size=16 train.global_batch_size=64"
EMA = "train.ema_decay=0.9"
MIXED = "data.augment=[horizontal_flip,mixup,cutmix]"
BCE = "optim.loss=bce optim.target_threshold=0.2"
SMALL = "train.global_batch_size=16 data.val_fraction=0.2"
CLASSES = f"data.name=table data.root=DATA/classes.csv {SMALL}"
LABELS = f"data.name=table data.root=DATA/labels.csv data.columns.label=[red,green,blue] {SMALL}"
NUMBERS = f"data.name=table data.root=DATA/numbers.csv data.task=regression optim.lr=0.001 {SMALL}"
GROWING = (
    f"{CLASSES} model.name=resnet18 data.image_size=16 data.progressive_size.start=8 data.progressive_size.epochs=1"
)
SHARDS = f"data.name=shards data.root=DATA/shards data.loader=workers data.workers=1 {SMALL}"
FILES_BITWISE = "train.reproducible=bitwise train.micro_batch_size=4"
# Name -> (ranks, settings, settings of a second start that goes on).
RUNS: dict[str, tuple[int, str, str | None]] = {
    "sgd-1": (1, "train.global_batch_size=64", None),
    "sgd-2": (2, "train.global_batch_size=64", None),
    "accumulation-4": (4, "train.global_batch_size=64 train.micro_batch_size=8", None),
    "adamw-ema-1": (1, "optim.name=adamw optim.lr=0.001 train.ema_decay=0.9 train.global_batch_size=64", None),
    "adamw-clip-2": (
        2,
        "optim.name=adamw optim.lr=0.001 train.clip_grad_norm=1.0 train.global_batch_size=64 train.micro_batch_size=8",
        None,
    ),
    "bf16-2": (2, "train.precision=bf16 train.global_batch_size=64", None),
    "bitwise-1": (1, BITWISE, None),
    "bitwise-2": (2, BITWISE, None),
    "bitwise-4": (4, BITWISE, None),
    "folder-1": (1, "data.name=folder data.root=DATA/images train.global_batch_size=16 data.augment=standard", None),
    "folder-workers-2": (
        2,
        "data.name=folder data.root=DATA/images data.loader=workers data.workers=1 train.global_batch_size=16",
        None,
    ),
    "resumed-2": (2, "train.global_batch_size=64 train.epochs=1", "train.global_batch_size=64 train.epochs=3"),
    "stopped-2": (2, f"train.global_batch_size=64 {EMA}", f"train.global_batch_size=64 {EMA}"),
    "stopped-frozen-2": (2, "train.global_batch_size=64 model.freeze=1", "train.global_batch_size=64 model.freeze=1"),
    "stopped-bitwise-4": (4, f"{BITWISE} {MIXED} {EMA}", f"{BITWISE} {MIXED} {EMA}"),
    "rollback-2": (2, "train.global_batch_size=64 train.epochs=4 log.every_steps=1 train.spike=rollback", None),
    "early-stop-2": (2, "train.global_batch_size=64 train.epochs=9 eval.early_stop=1 optim.lr=1e-6", None),
    "mixup-1": (1, f"train.global_batch_size=64 {MIXED}", None),
    "mixup-bce-2": (2, f"train.global_batch_size=64 train.micro_batch_size=8 {MIXED} {BCE}", None),
    "bitwise-mixup-1": (1, f"{BITWISE} {MIXED} {BCE}", None),
    "bitwise-mixup-2": (2, f"{BITWISE} {MIXED} {BCE}", None),
    "bitwise-mixup-4": (4, f"{BITWISE} {MIXED} {BCE}", None),
    "bitwise-freeze-2": (2, f"{BITWISE} model.freeze=1 train.clip_grad_norm=1.0", None),
    "frozen-2": (2, "train.global_batch_size=64 model.freeze=backbone", None),
    "resnet-2": (
        2,
        "model.name=resnet18 data.samples=160 train.global_batch_size=32 train.check_replicas_every_steps=2 "
        "optim.name=adamw optim.lr=0.001 optim.weight_decay_on=weights optim.layer_decay=0.8",
        None,
    ),
    "regression-1": (1, f"{NUMBERS} optim.loss=huber data.test_fraction=0.2", None),
    "regression-2": (2, f"{NUMBERS} train.micro_batch_size=4", None),
    "bitwise-regression-4": (4, f"{NUMBERS} {FILES_BITWISE}", None),
    "labels-1": (1, f"{LABELS} train.clip_grad_norm=1.0", None),
    "labels-2": (2, f"{LABELS} train.micro_batch_size=4 eval.threshold=auto data.test_fraction=0.2", None),
    "bitwise-labels-2": (2, f"{LABELS} {FILES_BITWISE}", None),
    "classes-2": (2, f"{CLASSES} data.sampling=balanced eval.flip=true", None),
    "memory-1": (1, f"{CLASSES} data.loader=memory optim.label_smoothing=0.1 optim.class_weights=balanced", None),
    "photos-2": (2, f"{CLASSES} data.augment=photos data.loader=workers data.workers=2", None),
    "progressive-2": (
        2,
        GROWING,
        None,
    ),
    "shards-1": (1, SHARDS, None),
    "shards-mixup-2": (2, f"{SHARDS} {MIXED}", None),
    "shards-resumed-2": (2, f"{SHARDS} train.epochs=1", f"{SHARDS} train.epochs=3"),
    "bitwise-shards-4": (4, f"{SHARDS} {FILES_BITWISE}", None),
    "compiled-1": (1, "train.global_batch_size=64 train.compile=default", None),
    "compiled-mixup-2": (2, f"train.global_batch_size=64 train.compile=default {MIXED}", None),
}
# What breaks the first start: a signal while step 8 is trained, or a loss a thousand times too large in step 14.
TERM = "step:*:7:term"
FAULTS = {"rollback-2": "loss:*:13:x1e3", "stopped-2": TERM, "stopped-frozen-2": TERM, "stopped-bitwise-4": TERM}
# Of a line of metrics.jsonl: what a clock, a meter or a host says.
TIMED = re.compile(r"second|time|per_s|memory|cpu|gpu|energy|host|wait|since", re.IGNORECASE)
BY_THE_CLOCK = ("rank", "gpu", "usage")  # a slow run has more of these
STOPPED = 75  # entrypoint.ExitCode.REQUEUE: training stopped for a signal, and a next start goes on
NAMED_BY_TIME = re.compile(r"events\.out\.tfevents\.[^/]*")


def write_data(folder: Path) -> None:
    """Small PNG files of noise, the same everywhere: three class folders, three tables of them, and two tar shards."""
    tables = {"classes": ["path,label"], "labels": ["path,red,green,blue"], "numbers": ["path,label"]}
    for number in range(120):
        label, name = number % 3, f"images/class-{number % 3}/{number // 3:02d}.png"
        noise = hashlib.sha256(f"{label} {number // 3}".encode()).digest() * 6
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_png(8, 8, b"".join(b"\0" + noise[row * 8 : row * 8 + 24] for row in range(8))))
        tables["classes"].append(f"{name},class-{label}")
        tables["labels"].append(f"{name},{','.join(str(noise[0] >> bit & 1) for bit in range(3))}")
        tables["numbers"].append(f"{name},{noise[0] + 100 * label + 0.5}")
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (folder / "shards").mkdir()
    for shard in range(2):
        with tarfile.open(folder / "shards" / f"{shard}.tar", mode="w") as tar:
            for path in sorted((folder / "images").rglob("*.png"))[shard::2]:
                digit = path.parent.name[-1]
                _add(tar, f"{digit}-{path.stem}.png", path.read_bytes())
                _add(tar, f"{digit}-{path.stem}.cls", digit.encode())
    subprocess.run(["train", "data", "index", str(folder / "shards")], check=True, timeout=120, capture_output=True)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def trained(name: str, folder: Path, data: Path) -> dict[str, Any]:
    """Train one run to its end; returns its hashes."""
    ranks, first, second = RUNS[name]
    is_stopped = FAULTS.get(name) == TERM
    for start, settings in enumerate(filter(None, (first, second))):
        words = [word.replace("DATA", str(data)) for word in f"{COMMON} {settings}".split()]
        last = {word.partition("=")[0]: word for word in words}  # the later of two wins
        if "data.name=" in settings:
            del last["data.samples"]
        line = ["train", "--device", "cpu", "--procs-per-node", str(ranks), f"run.name={name}", "run.output_dir=."]
        is_broken = start == 0 and name in FAULTS
        done = subprocess.run(
            [*line, *last.values()],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ | ({"FAULT": FAULTS[name]} if is_broken else {}),
        )
        if done.returncode != (STOPPED if is_broken and is_stopped else 0):
            raise SystemExit(f"{name} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return hashes(folder / name, ignored=(*BY_THE_CLOCK, *(("checkpoint",) if is_stopped else ())))


def hashes(run: Path, *, ignored: tuple[str, ...] = BY_THE_CLOCK) -> dict[str, Any]:
    """Of the newest checkpoint's tensors and numbers, of what metrics.jsonl says, and the names of all files.

    ignored: events of metrics.jsonl whose number or step depends on the clock.
    """
    checkpoint = max((run / "checkpoints").glob("step-*"))
    state = json.loads((checkpoint / "state.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    files = sorted(NAMED_BY_TIME.sub("events", str(path.relative_to(run))) for path in run.rglob("*") if path.is_file())
    tensors = {path.name: _hash(path.read_bytes()) for path in sorted(checkpoint.glob("*.safetensors"))}
    lines = [line for line in lines if line["event"] not in ignored]
    metrics = sorted((untimed(line) for line in lines), key=lambda line: (line["event"], line["step"]))  # saves overlap
    return {"tensors": tensors, "state": untimed(state), "metrics": metrics, "files": files}


def untimed(value: Any) -> Any:
    """The same without what differs from one run to the next."""
    if isinstance(value, dict):
        return {key: untimed(inner) for key, inner in value.items() if not TIMED.search(key)}
    return [untimed(inner) for inner in value] if isinstance(value, list) else value


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="FILE", type=Path)
    parser.add_argument("--only", metavar="WORD", default="")
    asked = parser.parse_args()
    names = [name for name in RUNS if asked.only in name]
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch, "data")
        write_data(data)
        runs = Path(scratch, "runs")
        runs.mkdir()
        found = {name: trained(name, runs, data) for name in names}
    text = json.dumps(found, indent=1).replace(scratch, "SCRATCH")
    if asked.against is None:
        print(text)
        return 0
    before, after = json.loads(asked.against.read_text()), json.loads(text)
    differ = [(name, part) for name in names for part in after[name] if after[name][part] != before[name][part]]
    for name, part in differ:
        print(f"{name}: {part} differ")
    print(f"{len(names)} runs, {len(differ)} differences: {' '.join(names)}")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
