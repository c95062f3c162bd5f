"""Trains twelve small runs and prints what came out as JSON: a change that moves code must not change one bit of it.

python tests/support/run_hashes.py > before.json        in a checkout of the old code
python tests/support/run_hashes.py --against before.json    in one of the new: ends with 1 where anything differs
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

COMMON = (
    "train.epochs=2 data.samples=640 data.image_size=8 log.every_steps=2 checkpoint.every_steps=4 eval.every_epochs=1 "
    "optim.lr=0.1"
)
BITWISE = "train.reproducible=bitwise train.micro_batch_size=16 train.global_batch_size=64"
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
    "folder-1": (1, "data.name=folder data.root=FOLDER train.global_batch_size=16 data.augment=standard", None),
    "folder-workers-2": (
        2,
        "data.name=folder data.root=FOLDER data.loader=workers data.workers=1 train.global_batch_size=16",
        None,
    ),
    "resumed-2": (2, "train.global_batch_size=64 train.epochs=1", "train.global_batch_size=64 train.epochs=3"),
}
# Of a line of metrics.jsonl: what a clock, a meter or a host says.
TIMED = re.compile(r"second|time|per_s|memory|cpu|gpu|energy|host|wait|since", re.IGNORECASE)
BY_THE_CLOCK = ("rank", "gpu", "usage")  # a slow run has more of these
NAMED_BY_TIME = re.compile(r"events\.out\.tfevents\.[^/]*")


def write_images(folder: Path) -> None:
    """Three classes of small PNG files, of noise that is the same everywhere."""
    for kind in range(3):
        place = folder / f"class-{kind}"
        place.mkdir(parents=True)
        for number in range(40):
            noise = hashlib.sha256(f"{kind} {number}".encode()).digest() * 6
            rows = b"".join(b"\0" + noise[row * 8 : row * 8 + 24] for row in range(8))
            (place / f"{number:02d}.png").write_bytes(_png(8, 8, rows))


def _png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def trained(name: str, folder: Path, images: Path) -> dict[str, Any]:
    """Train one run to its end; returns its hashes."""
    ranks, first, second = RUNS[name]
    for settings in filter(None, (first, second)):
        words = [word.replace("FOLDER", str(images)) for word in f"{COMMON} {settings}".split()]
        last = {word.partition("=")[0]: word for word in words}  # the later of two wins
        if "data.name=folder" in words:
            del last["data.samples"]
        line = ["train", "--device", "cpu", "--procs-per-node", str(ranks), f"run.name={name}", "run.output_dir=."]
        done = subprocess.run([*line, *last.values()], cwd=folder, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise SystemExit(f"{name} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return hashes(folder / name)


def hashes(run: Path) -> dict[str, Any]:
    """Of the newest checkpoint's tensors and numbers, of what metrics.jsonl says, and the names of all files."""
    checkpoint = max((run / "checkpoints").glob("step-*"))
    state = json.loads((checkpoint / "state.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    files = sorted(NAMED_BY_TIME.sub("events", str(path.relative_to(run))) for path in run.rglob("*") if path.is_file())
    tensors = {path.name: _hash(path.read_bytes()) for path in sorted(checkpoint.glob("*.safetensors"))}
    lines = [line for line in lines if line["event"] not in BY_THE_CLOCK]
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
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        images = Path(scratch, "images")
        write_images(images)
        runs = Path(scratch, "runs")
        runs.mkdir()
        found = {name: trained(name, runs, images) for name in RUNS}
    text = json.dumps(found, indent=1).replace(scratch, "SCRATCH")
    if asked.against is None:
        print(text)
        return 0
    before, now = json.loads(asked.against.read_text()), json.loads(text)
    differ = [(name, part) for name in RUNS for part in now[name] if now[name][part] != before[name][part]]
    for name, part in differ:
        print(f"{name}: {part} differ")
    print(f"{len(RUNS)} runs, {len(differ)} differences")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
