"""wandb and MLflow themselves, as users install them: what each start leaves in their files and on a server."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ODD = 'it\'s 100% "mine" #1 é'  # a folder whose name ends what is careless with a path, in SQL or in a URI
# One start of a run, without the training.
START = """
import json, os, sqlite3, sys, threading
from pathlib import Path
from train.config import load
from train.logging import trackers

name, folder, steps, exit_code = json.loads(sys.argv[1])
words = [f"run.name={Path(folder).name}", f"run.output_dir={json.dumps(str(Path(folder).parent))}"]
config = load.load_config(None, words)
classes = trackers.load_tracker_classes([name])
complained = threading.Event()

def warn(text):
    print(text, flush=True)
    complained.set()

if database := os.environ.get("LOCKED"):  # by another job, until there is a complaint
    locker = sqlite3.connect(database, isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
started = trackers.start_trackers(classes, config, Path(folder), os.environ, warn)
for step in steps:
    started.log({"train/loss": 1 / step}, step=step)
if database:
    complained.wait(120)
    locker.rollback()
started.end(exit_code)
for thread in threading.enumerate():
    if thread.name.startswith("the tracker"):
        thread.join()
"""


def start(name: str, folder: Path, steps: list[int], exit_code: int, **variables: str) -> str:
    """What a start printed, from a working folder in which it must leave nothing."""
    working, home = folder.parents[1] / "working", folder.parents[1] / "home"
    for root in (folder, working, home):
        root.mkdir(parents=True, exist_ok=True)
    environ = {key: text for key, text in os.environ.items() if not key.startswith(("WANDB_", "MLFLOW_"))}
    environ |= {"HOME": str(home), "WANDB_MODE": "offline", **variables}
    words = json.dumps([name, str(folder), steps, exit_code])
    command = [sys.executable, "-c", START, words]
    done = subprocess.run(command, cwd=working, env=environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert [path for root in (working, home) for path in root.rglob("*") if path.is_file()] == []
    return done.stdout + done.stderr


def mlflow_runs(database: Path) -> list[tuple[str, str, list[tuple[int, float]]]]:
    """(name, status, losses by step) of each run in an SQLite file, in their order."""
    with closing(sqlite3.connect(database)) as connection:
        runs = connection.execute("SELECT run_uuid, name, status FROM runs ORDER BY start_time").fetchall()
        losses = "SELECT step, value FROM metrics WHERE run_uuid = ? AND key = 'train/loss' ORDER BY timestamp, step"
        return [(name, status, connection.execute(losses, [run]).fetchall()) for run, name, status in runs]


def wandb_records(folder: Path) -> Iterator[Any]:
    """The records of wandb's offline files: 32 KiB blocks of (checksum, length, type, data), as LevelDB's log has."""
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(folder.glob("offline-run-*/*.wandb")):
        content, at, joined = file.read_bytes(), 7, b""
        while at + 7 <= len(content):
            if (rest := -at % 2**15) and rest < 7:
                at += rest
                continue
            _, length, kind = struct.unpack_from("<IHB", content, at)
            joined += content[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):  # complete, or the last part
                yield Record.FromString(joined)
                joined = b""


def wandb_content(folder: Path) -> dict[str, list[Any]]:
    """What wandb wrote down: ids and names of runs, exit codes, preemptions, and (row, step, loss)."""
    content: dict[str, list[Any]] = {"run": [], "exit": [], "preempting": [], "history": []}
    for record in wandb_records(folder):
        what = record.WhichOneof("record_type")
        if what == "run":
            content[what].append((record.run.run_id, record.run.display_name, record.run.project))
        elif what == "exit":
            content[what].append(record.exit.exit_code)
        elif what == "preempting":
            content[what].append(True)
        elif what == "history":
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            content[what].append((items["_step"], items["step"], items["train/loss"]))
    return content


def test_mlflow_knows_the_run_its_name_and_how_each_start_ended(tmp_path: Path) -> None:
    folder = tmp_path / ODD / "runs" / "photos"
    database = folder / "trackers" / "mlflow.db"
    for steps, exit_code, status in (([1, 2], 75, "KILLED"), ([2, 3], 0, "FINISHED"), ([4], 90, "FAILED")):
        printed = start("mlflow", folder, steps, exit_code)
        assert "warning" not in printed
        ((name, ended, losses),) = mlflow_runs(database)
        assert (name, ended) == ("photos", status)
    assert [step for step, _ in losses] == [1, 2, 2, 3, 4]
    copy = folder.parent / "copied"
    shutil.copytree(folder, copy)
    assert "is a copy" in start("mlflow", copy, [5], 0)
    assert [(name, len(losses)) for name, _, losses in mlflow_runs(copy / "trackers/mlflow.db")] == [
        ("photos", 5),
        ("copied", 1),
    ]


def test_wandb_knows_the_run_its_name_and_how_each_start_ended_and_a_rollback_says_nothing(tmp_path: Path) -> None:
    folder = tmp_path / ODD / "runs" / "photos"
    printed = start("wandb", folder, [10, 20, 30, 20, 30, 40], 75) + start("wandb", folder, [40, 50], 90)
    assert "warning" not in printed.lower().replace("warning `resume` will be ignored", "")
    assert "steps must be monotonically increasing" not in printed.lower()
    records = wandb_content(folder / "trackers/wandb")
    assert {name for _, name, _ in records["run"]} == {"photos"}
    assert {project for *_, project in records["run"]} == {"runs"}
    assert len({run_id for run_id, *_ in records["run"]}) == 1
    assert (records["exit"], records["preempting"]) == ([75, 90], [True])
    assert [(step, round(1 / loss)) for _, step, loss in records["history"]] == [
        (step, step) for step in (10, 20, 30, 20, 30, 40, 40, 50)
    ]
    rows = [row for row, *_ in records["history"][:6]]
    assert rows == [10, 20, 30, 31, 32, 40]


def test_a_lock_on_mlflow_s_file_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "photos"
    start("mlflow", folder, [1], 75)
    database = folder / "trackers" / "mlflow.db"
    printed = start("mlflow", folder, [2, 3], 0, LOCKED=str(database))
    assert "warning: the tracker mlflow fails, training goes on (its records are sent later): " in printed
    assert "database is locked" in printed
    assert "note: the tracker mlflow has all records now" in printed
    assert mlflow_runs(database)[0][1:] == ("FINISHED", [(1, 1.0), (2, 0.5), (3, 1 / 3)])


@contextmanager
def failing_server(dies_after: int) -> Iterator[tuple[str, list[str]]]:
    """An MLflow server, as far as a start asks one. After so many requests it answers with 503."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            path = self.path.partition("?")[0].rpartition("/2.0/mlflow/")[2]
            seen.append(f"{path} {body}")
            run = {
                "info": {
                    "run_id": "r1",
                    "run_uuid": "r1",
                    "experiment_id": "1",
                    "status": "RUNNING",
                    "lifecycle_stage": "active",
                    "artifact_uri": "file:///nowhere",
                    "start_time": 1,
                },
                "data": {},
            }
            answer: dict[str, Any] = {"experiment": {"experiment_id": "1", "name": "runs", "lifecycle_stage": "active"}}
            answer |= {"run": run, "run_info": run["info"]}
            is_dead = dies_after < len(seen)
            self.send_response(503 if is_dead else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({} if is_dead else answer).encode())

        do_GET = do_POST = do_PATCH = reply

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_that_dies_in_the_middle_ends_neither_the_run_nor_its_end(tmp_path: Path) -> None:
    with failing_server(dies_after=6) as (address, seen):
        printed = start("mlflow", tmp_path / "runs" / "photos", list(range(1, 30)), 0, MLFLOW_TRACKING_URI=address)
    assert any('"run_name": "photos"' in request for request in seen)
    assert "warning: the tracker mlflow fails, training goes on (its records are sent later): " in printed
    assert "records; metrics.jsonl has all" in printed
    assert "warning: the tracker mlflow was not told that this start ended" in printed
