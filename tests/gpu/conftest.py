"""A Python that sees null GPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import null_gpu
import pytest
from null_gpu_trainings import LIMIT_S, Start


@pytest.fixture(scope="session")
def stand_in() -> Path:
    """The folder of the compiled stand-ins."""
    return null_gpu.build()


@pytest.fixture
def start(stand_in: Path, tmp_path: Path) -> Start:
    """Start a Python that sees null GPUs."""

    def start_python(
        *words: str, gpus: int = 1, faults: Mapping[str, str] | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", **variables}
        environ |= null_gpu.environment(stand_in, gpus, **(faults or {}))
        command = [null_gpu.python(stand_in), *words]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=LIMIT_S)

    return start_python
