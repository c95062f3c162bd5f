"""The scripts that we are compared with: each runs alone, knows nothing of the project, and computes what ours does."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
import torch
from processes import python, unmeasured

from train.data.shape import Shape
from train.models.wide_resnet import wide_resnet

PEERS = Path(__file__).parents[2] / "bench" / "peers"
SCRIPTS = sorted(path.stem for path in PEERS.glob("*.py") if path.stem != "workload")
# Those that the step bench uses; the others have arguments of their own.
LOOPS = ("accelerated", "bare", "dataparallel", "published", "wire")
TINY = "--device cpu --model tiny --size 8 --classes 2 --samples 64 --batch 8 --warm-up 2 --steps 2 --blocks 2"


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_peer_runs_alone_and_prints_one_json_line(name: str, tmp_path: Path) -> None:
    script = str(PEERS / f"{name}.py")
    ended = python("-P", script, *TINY.split(), cwd=tmp_path, env=unmeasured() | {"OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr
    output = json.loads(ended.stdout.splitlines()[-1])
    assert output["peer"] == name
    assert len(output["step_s"]) == 2
    assert output["images_per_s"] > 0


@pytest.mark.parametrize("name", [*SCRIPTS, "workload"])
def test_no_peer_knows_the_project(name: str) -> None:
    tree = ast.parse((PEERS / f"{name}.py").read_text())
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [module for module in imported if module.split(".")[0] in ("train", "entrypoint")]


def test_the_peers_network_computes_what_ours_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    import workload

    monkeypatch.setitem(sys.modules, "workload", workload)
    ours = wide_resnet(classes=10, shape=Shape(channels=3, size=(32, 32)), depth=2, width=1, dropout=0.0).eval()
    peer = workload.WideResNet(classes=10, depth=2, width=1, dropout=0.0).eval()
    for own, other in zip(ours.state_dict().values(), peer.state_dict().values(), strict=True):
        other.copy_(own)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(images), peer(images))
