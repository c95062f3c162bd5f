"""What a step of the reference workload costs on a GPU, computed: launches and copies counted on a null GPU, bytes of
the kernels that torch's compiler makes. docs/evidence/performance.md holds the table that it prints.

null_gpu_cost.py       prints the table (two minutes on two cores, 8 GB of memory)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SETTINGS = (
    *("data.image_size=32", "data.classes=100", "data.samples=2560", "data.val_fraction=0", "train.epochs=2"),
    *("model.name=wide_resnet", "model.args={depth: 2, width: 10, dropout: 0.01}", "train.precision=bf16"),
    *("train.global_batch_size=256", "train.micro_batch_size=256", "log.tensorboard=false", "data.augment=standard"),
)
MODES = ("false", "default", "reduce-overhead")
TFLOP = 256 * 14.47e-3  # of the convolutions and products of a step
# Peak TFLOP/s in bf16 (dense) and TB/s of memory. Source: NVIDIA's data sheets.
GPUS = {"A100 80 GB": (312.0, 2.04), "H200": (989.0, 4.8), "B200": (2250.0, 8.0)}
# Shares of the peaks that convolutions of these shapes and generated kernels usually reach: assumed, not measured.
COMPUTE_SHARE, MEMORY_SHARE = 0.5, 0.78


def count(mode: str) -> dict[str, int]:
    """On a null GPU, the counts of one step. generated_bytes: read and written by the kernels that torch generates."""
    import null_gpu

    with tempfile.TemporaryDirectory() as folder:
        environ = {"PATH": os.environ["PATH"], "HOME": folder, "OMP_NUM_THREADS": "2"}
        environ |= {
            "PYTHONPATH": str(Path(__file__).parent),
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCH_LOGS": "inductor_metrics",
        }
        environ |= null_gpu.environment(stand_in := null_gpu.build())
        command = [null_gpu.python(stand_in), __file__, "step", folder, f"train.compile={mode}"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900, check=True)
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


def count_here(folder: Path, *settings: str) -> dict[str, int]:
    """In a process on a null GPU."""
    from null_gpu_steps import count_steps
    from torch._inductor.graph import GraphLowering

    generated = []
    count_bytes = GraphLowering.count_bytes  # called for each graph where the log "inductor_metrics" is on

    def note_bytes(graph: GraphLowering) -> object:
        nodes = [node for node in graph.scheduler.nodes if not node.is_extern()]  # without convolutions and products
        generated.append(sum(node.get_read_write_buffers_sizes() for node in nodes))
        return count_bytes(graph)

    GraphLowering.count_bytes = note_bytes  # type: ignore[method-assign]
    counts = count_steps(folder, *SETTINGS, *settings)[-1]
    return counts | {"generated_bytes": sum(generated)}


def main() -> None:
    """Print the table."""
    names = (
        "`train.compile`",
        "launches",
        "graph replays",
        "convolutions, products",
        "bytes moved",
    )
    print(f"| {' | '.join(names)} |\n|{' --- |' * len(names)}")
    num_bytes = 0
    for mode in MODES:
        counts = count(mode)
        num_bytes = counts["generated_bytes"] if mode == "default" else num_bytes
        products = counts["convolutions"] + counts["matrix_products"]
        moved = f"{counts['generated_bytes'] / 1e9:.2f} GB" if counts["generated_bytes"] else "not known"
        cells = (mode, counts["launches"], counts["graph_launches"], products, moved)
        print("|", " | ".join(map(str, cells)), "|", flush=True)
    print("\n| GPU | convolutions, products | generated kernels | together |\n| --- | --- | --- | --- |")
    for name, (tflops, tbs) in GPUS.items():
        compute, memory = TFLOP / tflops / COMPUTE_SHARE * 1e3, num_bytes / 1e9 / tbs / MEMORY_SHARE
        print(f"| {name} | {compute:.1f} ms | {memory:.1f} ms | {compute + memory:.1f} ms |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["step"]:
        print(json.dumps(count_here(Path(sys.argv[2]), *sys.argv[3:])))
    else:
        main()
