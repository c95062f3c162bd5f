"""A folder of images in one SquashFS file, as docs/data.md says: a user packs it, and two nodes read it."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from bed import Cluster, Done, Ended
from images import write_classes
from machines import REPOSITORY
from runs import TEN_STEPS, Run

DATA = "{name: folder, root: photos, image_size: 16, loader: workers, workers: 1}"
CONFIG = re.sub(r"data: \{.*\}", f"data: {DATA}", TEN_STEPS).replace("epochs: 1,", "epochs: 10,")
DOCUMENTED = (REPOSITORY / "docs" / "data.md").read_text()


def documented(pattern: str) -> str:
    """The part of docs/data.md in the parentheses of this pattern."""
    found = re.search(pattern, DOCUMENTED, re.M)
    assert found, f"docs/data.md has no {pattern}"
    return found[1].strip()


@pytest.fixture(scope="module")
def packed(cluster: Cluster, place: Callable[[str], str]) -> str:
    """The user's folder, with images and the file that holds them too."""
    cwd = place("squashfs")
    folder = cluster.here(cwd)
    write_classes(folder / "photos", ant=40, bee=40)
    (folder / "config.yaml").write_text(CONFIG)
    words = documented(r"^mksquashfs (photos .*?)(?: #.*)?$").split()
    done = cluster.login("mksquashfs", *words, "-quiet", "-no-progress", cwd=cwd)
    assert done.returncode == 0, done.stdout
    return cwd


@pytest.fixture(scope="module")
def checked(cluster: Cluster, packed: str) -> Done:
    """What `train data check` says of the file's images, on the login node."""
    bind = documented(r"^apptainer .*(--bind photos\.sqfs\S+)").split()
    check = ["train", "data", "check", "data.name=folder", "data.root=/data", "data.image_size=8"]
    words = ["apptainer", "--quiet", "exec", *bind, "/shared/train.sif", *check]
    return cluster.login(*words, cwd=packed, seconds=240)


def trained(cluster: Cluster, cwd: str, *settings: str, **variables: str) -> Ended:
    """A training on two nodes, one rank on each."""
    script = f"srun apptainer --quiet exec /shared/train.sif train --config config.yaml {' '.join(settings)}"
    job = cluster.submit("-N2", "--ntasks-per-node=1", script=script, cwd=cwd, OMP_NUM_THREADS="1", **variables)
    return job.wait(600)


def test_every_image_of_the_file_is_read(checked: Done) -> None:
    counts = re.findall(r"(training|validation|broken) +(\d+ read|none)", checked.stdout)
    assert (checked.returncode, counts) == (
        0,
        [("training", "64 read"), ("validation", "16 read"), ("broken", "none")],
    ), checked.stdout


def test_two_nodes_that_read_the_file_get_the_weights_of_a_training_on_the_folder(
    cluster: Cluster, packed: str
) -> None:
    bind = documented(r"`export APPTAINER_BIND=(.*?)`").replace("$PWD", packed)
    of_folder = trained(cluster, packed, "run.name=folder")
    of_file = trained(cluster, packed, "run.name=file", "data.root=/data", APPTAINER_BIND=bind)
    assert (of_folder.code, of_file.code) == (0, 0), of_folder.output + of_file.output
    runs = cluster.here(packed) / "runs"
    expected, weights = (Run(folder=runs / name).weights(10) for name in ("folder", "file"))
    assert expected.keys() == weights.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(weights[name], array, err_msg=name)
