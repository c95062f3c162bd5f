"""Every situation of tests/cluster/situations at once on one cluster, and what `entrypoint show` said in each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
from bed import Cluster, until
from machines import REPOSITORY
from runs import TEN_STEPS, Run

HERE = REPOSITORY / "tests" / "cluster"
IMAGE = "/shared/train.sif"
IN_IMAGE = f"""[[ -d /.singularity.d ]] || exec apptainer --quiet exec {IMAGE} "$0" "$@"\n"""
# Where the suite has no Apptainer: the checkout's package, run by the nodes' own Python.
ON_NODE = 'PYTHONPATH=/shared/lib exec python3 -m entrypoint "$@"\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One process: what it was (`task`, `batch`, `shell`), where it ran, and what it was told.

    told: the object of `entrypoint show --json`. environ: what the launcher gave it.
    """

    kind: str
    number: str
    host: str
    told: dict[str, Any]
    environ: dict[str, str]

    @property
    def refused(self) -> dict[str, Any]:
        """The error, or nothing."""
        error: dict[str, Any] = self.told.get("error", {})
        return error


def situations() -> dict[str, str]:
    """Name -> the command that makes it so."""
    lines = (HERE / "situations").read_text().splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: command.replace("--wait ", "") for name, command in pairs}


def needs_image(command: str) -> bool:
    """Whether it can only be made with Apptainer."""
    return "./image" in command


def run_all(cluster: Cluster, *, image: bool) -> Path:
    """Make every situation, wait for the last job, and return the folder with one folder for each."""
    place = cluster.shared / "situations"
    for name, command in situations().items():
        if image or not needs_image(command):
            _prepare(place / name, command, image=image)
    if not image:
        shutil.copytree(REPOSITORY / "entrypoint", cluster.shared / "lib" / "entrypoint")
        shutil.copy(pynvml.__file__, cluster.shared / "lib")
    place.chmod(0o777)
    # The nodes need seconds each; a command that hangs is ended.
    told = cluster.login(
        "bash", "-c", "for each in */; do (cd $each && timeout 300 bash ./command >out 2>&1 </dev/null) & done; wait",
        cwd="/shared/situations", seconds=360,
    )  # fmt: skip
    if told.returncode:
        raise RuntimeError(told.stdout)
    (place / "version").write_text(cluster.login("srun", "--version").stdout)
    until(lambda: not _queue(cluster), 360, lambda: _queue(cluster))
    return place


def _queue(cluster: Cluster) -> str:
    return cluster.login("squeue", "-h", "-o", "%i %j %T %r %o").stdout


def _prepare(folder: Path, command: str, *, image: bool) -> None:
    (folder / "environs").mkdir(parents=True)
    (folder / "command").write_text(command + "\n")
    programs = {
        "entrypoint": IN_IMAGE + 'exec entrypoint "$@"\n' if image else ON_NODE,
        "image": IN_IMAGE + 'exec "$@"\n',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    for name in ("probe", "meet.py"):
        shutil.copy(HERE / name, folder)
    (folder / "config.yaml").write_text(TEN_STEPS)
    folder.chmod(0o777)
    (folder / "environs").chmod(0o777)


def seen(folder: Path) -> list[Seen]:
    """All processes of a situation, tasks in the order of their ranks."""
    found = [_one(path) for path in (folder / "environs").glob("*.json")]
    return sorted(found, key=lambda each: (each.kind, each.told.get("world", {}).get("rank", 0)))


def _one(path: Path) -> Seen:
    parts = re.fullmatch(r"([a-z]+)(\d*)-(?:\d+|x)@(.+)\.json", path.name)
    if not parts:
        raise ValueError(path.name)
    text = path.read_text()
    told = (
        json.loads(text) if text else {"error": {"code": -1, "what": path.with_suffix(".err").read_text(), "fix": ""}}
    )
    lines = path.with_suffix(".env").read_text().splitlines()
    environ = dict(line.split("=", 1) for line in lines if "=" in line)
    return Seen(kind=parts[1], number=parts[2], host=parts[3], told=told, environ=environ)


def results(folder: Path) -> Iterator[str]:
    """What the table says of a situation: one part for shells and one for tasks."""
    everyone = seen(folder)
    for kind in ("batch", "shell", "task"):
        said = {_result(each) for each in everyone if each.kind == kind}
        if said:
            yield f"{'tasks' if kind == 'task' else kind}: {' or '.join(sorted(said))}"
    met = [path.read_text().split() for path in (folder / "environs").glob("met-*.txt")]
    if met:
        ports, sizes = {port for port, _ in met}, [size for _, size in met]
        yield f"{len(met)} jobs on {len(ports)} ports, {' and '.join(sizes)} ranks met"
    runs = [Run(folder=path) for path in sorted((folder / "runs").glob("job-*"))]
    if runs:
        ports = {str(run.record["world"]["master_port"]) for run in runs}
        steps = " and ".join(str(len(run.logged())) for run in runs)
        yield f"{len(runs)} jobs on {len(ports)} ports, {steps} steps trained"


def _result(process: Seen) -> str:
    if process.refused:
        return f"refused, {process.refused['code']}"
    world = process.told["world"]
    return f"`{process.told['launcher']}` {_count(world['world_size'], 'rank')} on {_count(world['num_nodes'], 'node')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"
