"""A run's files changed at random, with right hashes as a forger gives them: no reader stumbles or waits."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checkpoints import plant, saved

from entrypoint import Failure
from entrypoint.run_errors import RunErrors
from train import file_lock
from train.checkpoint import format, manifest, store
from train.checkpoint.manifest import DamagedCheckpointError
from train.config.schema import CheckpointConfig
from train.run import record

NUMBER = 60
LAST = "checkpoints/step-00000008"
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**30, 10**400, 1e308, float("nan"), float("inf"), "", "x", "9" * 5000, "\ud800", "../x"),
    *("/etc/passwd", "a" * 300, [], [1], [[]], {}, {"a": 1}, "\0", 2.5, json.loads("[" * 200 + "]" * 200)),
)
Reader = Callable[[Path], object]


def begun(folder: Path) -> None:
    record.add_start(folder, 3, environ={"SLURM_JOB_ID": "7"}, holder_token="a", started_at=1e9)
    record.write_start_exit(folder, 69, file_lock.this_process_as_holder(launch_id="a"))


def open_latest(folder: Path) -> None:
    file_lock.is_alive_here(file_lock.read_current_lock(folder / ".lease")[1])
    file_lock.acquire_lock(folder / ".lease", file_lock.assume_stale(folder / ".lease"))


def loaded(folder: Path) -> None:
    checkpoint = store.newest_checkpoint(folder / "checkpoints")
    if checkpoint:
        format.load_checkpoint(checkpoint)


def pruned(folder: Path) -> None:
    store.prune_checkpoints(folder / "checkpoints", CheckpointConfig(keep=1))


READERS: dict[str, tuple[Reader, ...]] = {
    "run.json": (record.read_run, begun),
    "errors/exit.json": (lambda folder: RunErrors.in_run(folder).read_exit(),),
    "errors/stopping.json": (lambda folder: RunErrors.in_run(folder).describe_unfinished_save(),),
    ".lease.1": (open_latest,),
    f"{LAST}/manifest.json": (loaded, pruned),
    f"{LAST}/state.json": (loaded, pruned),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forged") / "run"
    saved(folder / "checkpoints", 4, 8)
    begun(folder)
    RunErrors.in_run(folder).write_exit(code=75, step=8, cause="SIGTERM")
    RunErrors.in_run(folder).write_stopping(by="SIGTERM", save_s=2.0)
    file_lock.acquire_lock(folder / ".lease")
    return folder


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def changed(value: Any, draw: random.Random) -> Any:
    """One part is another, or gone."""
    value, path = copy.deepcopy(value), draw.choice(list(paths(value)))
    if not path:
        return draw.choice(VALUES)
    part = value
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = draw.choice(VALUES)
    if draw.random() < 0.2:
        del part[path[-1]]
    return value


def forged(data: bytes, draw: random.Random) -> bytes:
    contents = json.loads(data)
    if "manifest" not in contents:
        return json.dumps(changed(contents, draw)).encode()
    inner = changed(contents["manifest"], draw)
    with suppress(ValueError, TypeError):  # a number that JSON cannot read back
        return json.dumps({"manifest": inner, "sha256": manifest._hash_manifest(inner)}).encode()
    return b"{}"


def put_in_place(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    torn = data[: draw.randrange(len(data))]
    change = draw.randrange(12)
    path.unlink()
    if change < 3:
        return (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"))[change]()
    texts = (torn, draw.choice((b"", b"\xff\xfe", b"[" * 100_000, b"9" * 5000)))
    written = texts[change - 3] if change < 5 else forged(data, draw)
    return plant(path.parent, path.name, written) if path.name == "state.json" else _written(path, written)


def _written(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.timeout(60)
def test_no_reader_stumbles_waits_or_loses_the_checkpoint_before(run: Path, tmp_path: Path, name: str) -> None:
    draw = random.Random(name)
    for _ in range(int(os.environ.get("FORGERIES") or NUMBER)):
        folder = shutil.copytree(run, tmp_path / "run")
        put_in_place(folder / name, draw)
        for reader in READERS[name]:
            with suppress(Failure, DamagedCheckpointError):
                reader(folder)
        checkpoints = store.list_checkpoints(folder / "checkpoints").values()
        assert any(store.is_valid_checkpoint(path) for path in checkpoints)
        shutil.rmtree(folder)
