"""The same command under each launcher that pip installs: the right world, and one process's weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grid import train_ten_steps
from processes import python, scratch, unmeasured
from runs import TEN_STEPS, Run

TRAIN = ("--config", "config.yaml", "--device", "cpu")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
STARTS = {
    "--procs-per-node": ("-m", "train", *TRAIN, "--procs-per-node", "2"),
    "torchrun": (*TORCHRUN, "-m", "train", *TRAIN),
    "torchrun standalone": (*TORCHRUN[:2], "--standalone", *TORCHRUN[2:], "-m", "train", *TRAIN),
    "torch.distributed.launch": ("-m", "torch.distributed.launch", *TORCHRUN[2:], "-m", "train", *TRAIN),
    "accelerate launch": (
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--mixed_precision", "no"),
        *("-m", "train", *TRAIN),
    ),
}


def trained(folder: Path, start: str) -> Run:
    """Ten steps under this launcher. The worker's checks are real; warnings on the launcher's side are its own."""
    folder.mkdir()
    (folder / "config.yaml").write_text(TEN_STEPS)
    with scratch() as temporary:  # torchrun leaves a folder in it
        environ = unmeasured() | {"OMP_NUM_THREADS": "1", "TMPDIR": temporary}
        done = python(*STARTS[start], cwd=folder, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return Run(folder=folder / "runs" / "run")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights that one rank comes to, in this process."""
    return train_ten_steps(tmp_path_factory.mktemp("alone") / "run").weights(10)


# `accelerate launch` starts its processes through torchrun.
MARKS = {"--procs-per-node": (), "torchrun": (), "accelerate launch": (pytest.mark.slow, pytest.mark.every_run)}


@pytest.mark.parametrize("start", [pytest.param(name, marks=MARKS.get(name, pytest.mark.slow)) for name in STARTS])
def test_two_ranks_come_to_one_process_weights_under_every_launcher(
    start: str, tmp_path: Path, alone: dict[str, Any]
) -> None:
    run = trained(tmp_path / "run", start)
    assert run.record["world"]["world_size"] == 2
    assert run.record["launcher"] == ("local" if start == "--procs-per-node" else "torchrun")
    for name, expected in alone.items():
        assert np.all(np.abs(run.weights(10)[name] - expected) <= 1e-6 + 1e-5 * np.abs(expected)), name


def test_a_users_own_script_that_knows_torch_distributed_only_runs_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(1); dist.all_reduce(total)\n"
        "print('ranks', int(total)); dist.destroy_process_group()\n"
    )
    line = ("-m", "entrypoint", "run", "--device", "cpu", "--procs-per-node", "2", "--", sys.executable, "script.py")
    done = python(*line, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ranks 2\n"), done.stderr
