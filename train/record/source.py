"""The files around this code become its identity: the git commit and the image that it runs from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
IMAGE = Path("/opt/image.json")  # written when the image is built
# Where a container's engine says which file or image it runs.
VARIABLES = ("ENTRYPOINT_IMAGE", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
DIGEST = "ENTRYPOINT_IMAGE_DIGEST"  # an image cannot hold its own: the job scripts say it
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def image(environ: Mapping[str, str], path: Path = IMAGE) -> dict[str, Any] | None:
    """What the image says about itself, and what its start says (its file, its digest); None outside one."""
    facts: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError):
        facts |= json.loads(path.read_bytes())
    started = next((environ[variable] for variable in VARIABLES if environ.get(variable)), None)
    said = {"started_from": started, "digest": environ.get(DIGEST)}
    return facts | {name: value for name, value in said.items() if value} or None


def commit(project: Path = PROJECT) -> str | None:
    """The checked-out commit's hash, read from `.git` itself: the image has no git. None outside a checkout."""
    with suppress(OSError, ValueError):
        git = _git_folder(project / ".git")
        head = (git / "HEAD").read_text().strip()
        return _hash(head) or _resolve(git, head.removeprefix("ref: "))
    return None


def _git_folder(path: Path) -> Path:
    """`.git`, or what it points to in a worktree or submodule."""
    return path.parent / path.read_text().strip().removeprefix("gitdir: ") if path.is_file() else path


def _resolve(git: Path, name: str) -> str | None:
    """The hash that a branch stands for, loose or packed, in this folder or in the one it shares with others."""
    shared = git / "commondir"
    common = git / shared.read_text().strip() if shared.is_file() else git
    for place in (git, common):
        if (place / name).is_file():
            return _hash((place / name).read_text().strip())
    lines = (common / "packed-refs").read_text().splitlines()
    return next((_hash(line.split()[0]) for line in lines if line.endswith(f" {name}")), None)


def _hash(text: str) -> str | None:
    return text if HASH.fullmatch(text) else None
