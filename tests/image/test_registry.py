"""The image on its way to a cluster through a registry, with Apptainer: docs/image.md."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from machines import REPOSITORY
from site_registry import SiteRegistry

pytestmark = pytest.mark.timeout(600)  # the first one may have to build the image


def test_a_sif_comes_back_from_a_registry_bit_by_bit(site: SiteRegistry, tmp_path: Path) -> None:
    """Debian's image stands for ours, which takes gigabytes: the same commands."""
    site.podman("push", "--quiet", site.base(), f"{site.address}/you/train:1")
    commands = f"""
        apptainer pull --no-https train.sif docker://{site.address}/you/train:1
        apptainer push --no-https --allow-unsigned train.sif oras://{site.address}/you/train-sif:1
        apptainer pull --no-https again.sif oras://{site.address}/you/train-sif:1
        cmp train.sif again.sif
        apptainer exec again.sif cat /etc/os-release"""
    in_node = [
        REPOSITORY / "tests" / "in-node",
        tmp_path,
        "env",
        f"APPTAINER_TMPDIR={tmp_path}",
        "bash",
        "-ec",
        commands,
    ]
    done = subprocess.run(in_node, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "VERSION_CODENAME=trixie" in done.stdout
