"""A whole training writes in its folder, data.root and scratch places only, and listens on loopback only."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import servers
from calls_seen import Seen, watched
from processes import unmeasured
from publishing import DRIVER, stand_in, write_table
from servers import serving

CONFIG = """
run: {name: run, output_dir: out/runs}
launch: {device: cpu, procs_per_node: 2}
data: {name: mnist, root: data, download: true, image_size: 28, loader: workers, workers: 1, augment: none}
train: {epochs: 1, max_steps: 3, global_batch_size: 48, micro_batch_size: 8}
checkpoint: {every_steps: 1}
log: {every_steps: 1}
"""
ROOT = Path(__file__).parents[1]
SECRET = "hunter2hunter2"
SECRETS = {
    "HF_TOKEN": SECRET,
    "WANDB_API_KEY": SECRET,
    "NCCL_SECRET_NUMBER": SECRET,
    "TORCH_PASSWORD": SECRET,
    "HF_PAT": SECRET,
    "CUDA_PASSPHRASE": SECRET,
    "TORCH_HUB_URL": f"https://hub/x?token={SECRET}",
    "HTTPS_PROXY": f"http://me:{SECRET}@127.0.0.1:9",
}
SHARED_MEMORY = re.compile(
    r"/proc/\d+/fd/\d+"
)  # of another rank, as train.distributed.shared_memory hands it on: no file system's
ARCHIVES, BODIES = stand_in("mnist")
pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="machine: the command strace is not there")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("safety")


@pytest.fixture(scope="module")
def seen(workdir: Path) -> Seen:
    """Two ranks with data workers and TensorBoard, whose data was fetched first."""
    for name in ("work", "home", "tmp"):
        (workdir / name).mkdir()
    (workdir / "work" / "cfg.yaml").write_text(CONFIG)
    table = write_table(workdir / "table.json", {"mnist": ARCHIVES})
    environ = {name: value for name, value in unmeasured().items() if not name.lower().endswith("_proxy")}
    environ |= {"HOME": str(workdir / "home"), "TMPDIR": str(workdir / "tmp"), "OMP_NUM_THREADS": "1"}
    environ |= {"PYTHONDONTWRITEBYTECODE": "1"} | SECRETS
    with serving(BODIES, servers.whole) as server:
        words = ("--config", "cfg.yaml", f"data.mirror={server.url}")
        command = (sys.executable, "-c", DRIVER, str(table), *words)
        recorded = watched(command, cwd=workdir / "work", environ=environ, record=workdir / "calls", seconds=400)
    assert recorded.code == 0, recorded.said
    return recorded


def kept_in(path: Path, *folders: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def test_it_did_all_that_a_training_does(seen: Seen, workdir: Path) -> None:
    changed = {str(path) for path in seen.changed(workdir / "work")}
    for part in ("events.out.tfevents", "manifest.json", "run.json", "rank-0001.log", "ubyte", ".lease.1"):
        assert any(part in path for path in changed), part


def test_nothing_is_written_outside_the_runs_folder_the_data_and_scratch_places(seen: Seen, workdir: Path) -> None:
    work, cache = workdir / "work", workdir / "home" / ".cache"
    own_folders = (
        work / "out" / "runs" / "run",
        work / "data",
        workdir / "tmp",
        cache,
        Path("/dev/shm"),
        Path("/proc/self"),
    )
    made = {work / "out", work / "out" / "runs", Path("/dev/null")}
    others = {path for path in seen.changed(work) if not kept_in(Path(os.path.normpath(path)), *own_folders)} - made
    others = {path for path in others if not SHARED_MEMORY.fullmatch(str(path))}
    # Whether the place can be written is found out by writing, before the run has a folder.
    assert {path for path in others if not path.name.startswith(".tmp-probe-")} == set()
    assert {path.parent for path in others} <= {work / "out" / "runs"}


def test_it_listens_on_loopback_only(seen: Seen) -> None:
    assert seen.bound() == {"127.0.0.1"}


def test_scratch_places_are_empty_afterwards(seen: Seen, workdir: Path) -> None:
    caches = ("torchinductor_",)  # torch's
    assert [path.name for path in (workdir / "tmp").iterdir() if not path.name.startswith(caches)] == []
    assert [path.name for path in (workdir / "work").glob("out/runs/run/.*")] == []


def test_no_secret_of_the_environment_is_said_or_kept(seen: Seen, workdir: Path) -> None:
    files = [path for path in (workdir / "work").rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in seen.said
    assert '"HTTPS_PROXY": "http://(not shown)@127.0.0.1:9"' in (workdir / "work/out/runs/run/run.json").read_text()


RUNS_CODE = re.compile(r"pickle\.(loads?|Unpickler)|(yaml|marshal)\..*loads?|eval|exec")
# From the first rank of this machine to the others, over the connection whose messages torch unpickles itself.
BETWEEN_RANKS = "pickle.loads(pickled, buffers=parts)"
SAFE = {"torch.load": ("weights_only", "True"), "np.load": ("allow_pickle", "False")}


def calls() -> list[ast.Call]:
    """Every call in the code that ships."""
    sources = [path for package in ("bench", "train", "entrypoint", "image") for path in (ROOT / package).rglob("*.py")]
    return [node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def test_nothing_that_is_read_can_run_code() -> None:
    """torchvision alone unpickles, the CIFAR files: after it has compared their hashes (tests/train/data)."""
    assert [ast.unparse(call) for call in calls() if RUNS_CODE.fullmatch(ast.unparse(call.func))] == [BETWEEN_RANKS]
    loads = [call for call in calls() if ast.unparse(call.func) in SAFE]
    assert len(loads) >= 3
    for call in loads:
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        name, expected = SAFE[ast.unparse(call.func)]
        assert given.get(name) == expected, ast.unparse(call)
