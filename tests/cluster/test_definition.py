"""apptainer.def, built by an unprivileged user with Apptainer alone, gives the image that the Containerfile gives."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from bed import Cluster, Done
from machines import REPOSITORY
from runs import TEN_STEPS, Run

BUILD = REPOSITORY / "tools" / "build-definition"
BUILD_S = 1500
# Every package with its version, and the hashes: of the files of each Debian package, of each wheel and of its files.
PACKAGES = """
dpkg-query -W -f '${Package} ${Version} ${Architecture}\\n'
cd /var/lib/dpkg/info && sha256sum *.md5sums
cat /opt/train-image/wheels.txt
cd /opt/venv/lib/python3.*/site-packages && sha256sum $(ls -d *.dist-info/RECORD | grep -v ^train_image)"""
# What the steps of the recipe made besides: settings and commands.
MADE = "find /usr/local/bin /opt/train-image/start /etc -xdev -type f -readable | grep -vxF /etc/ld.so.cache | sort"
BOUND = "/etc/(hosts|resolv.conf|passwd|group|localtime)"
OURS = ("title", "description", "licenses", "version")


@pytest.fixture(scope="module")
def built(cluster: Cluster) -> Path:
    """The folder of the build: the SIF and what was noted; the SIF is on the nodes as /shared/definition.sif."""
    done = subprocess.run(
        [REPOSITORY / "tools" / "build-definition"], stdout=subprocess.PIPE, text=True, timeout=BUILD_S
    )
    if done.returncode:
        pytest.fail("apptainer.def could not be built (see above)")
    sif = Path(done.stdout.strip())
    try:
        os.link(sif, cluster.shared / "definition.sif")
    except OSError:  # the cache is on another file system
        shutil.copyfile(sif, cluster.shared / "definition.sif")
    return sif.parent


def inside(cluster: Cluster, image: str, *command: str) -> Done:
    """A command in one of the two images, on the login node."""
    return cluster.login("apptainer", "--quiet", "exec", f"/shared/{image}.sif", *command, seconds=120)


def of_both(cluster: Cluster, script: str) -> tuple[list[str], list[str]]:
    """What a script prints in the image of apptainer.def, and in that of the Containerfile."""
    told = [inside(cluster, image, "bash", "-euc", script) for image in ("definition", "train")]
    assert [done.returncode for done in told] == [0, 0], told
    definition, train = (done.stdout.splitlines() for done in told)
    return definition, train


@pytest.fixture
def same_day(cluster: Cluster, built: Path) -> tuple[list[str], list[str]]:
    """The packages of both; the test is skipped where Debian changed a version between the two builds."""
    definition, train = of_both(cluster, PACKAGES)
    if definition != train and names(definition) == names(train):
        pytest.skip("machine: Debian has published newer packages since the first of the two images was built")
    return definition, train


def names(packages: list[str]) -> list[str]:
    """Debian's packages without their versions and their files' hashes; wheels stay as they are."""
    without_version = (re.sub(r"^(\S+) \S+ (amd64|arm64|all)$", r"\1", line) for line in packages)
    return [re.sub(r"^[0-9a-f]{64}  (\S+\.md5sums)$", r"\1", line) for line in without_version]


def test_packages_and_hashes_are_those_of_the_other_recipe(same_day: tuple[list[str], list[str]]) -> None:
    definition, train = same_day
    assert len(definition) > 400
    assert definition == train


@pytest.mark.usefixtures("same_day")
def test_settings_and_commands_are_those_of_the_other_recipe(cluster: Cluster, built: Path) -> None:
    definition, train = of_both(cluster, f"{MADE} | grep -vxE '{BOUND}' | xargs sha256sum")
    assert definition == train


def test_variables_are_those_of_the_other_recipe(cluster: Cluster, built: Path) -> None:
    # /usr/local/sbin, which is empty: Apptainer appends it for an image that comes from Docker.
    script = "env | grep -vE '^(APPTAINER|SINGULARITY)_' | sed '/^PATH=/s#:/usr/local/sbin$##' | sort"
    definition, train = of_both(cluster, script)
    assert definition == train


def labels(cluster: Cluster, image: str) -> dict[str, str]:
    """The OCI labels of a SIF, without their prefix."""
    shown = json.loads(cluster.login("apptainer", "inspect", "--json", "--labels", f"/shared/{image}.sif").stdout)
    prefix = "org.opencontainers.image."
    found = shown["data"]["attributes"]["labels"]
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}


def test_labels_are_those_of_the_other_recipe(cluster: Cluster, built: Path) -> None:
    definition, train = labels(cluster, "definition"), labels(cluster, "train")
    assert definition.keys() == train.keys()
    assert {name: definition[name] for name in OURS} == {name: train[name] for name in OURS}


BOTH = pytest.mark.parametrize("image", ["definition", "train"])


@BOTH
def test_its_own_test_passes(cluster: Cluster, built: Path, image: str) -> None:
    job = ("env", "SLURM_JOB_ID=7", "SLURM_NTASKS=8")  # in which nobody started it as a task
    done = cluster.login(*job, "apptainer", "test", f"/shared/{image}.sif", seconds=120)
    assert (done.returncode, "launcher " in done.stdout) == (0, True), done.stdout


@BOTH
def test_its_help_shows_how_to_start_it(cluster: Cluster, built: Path, image: str) -> None:
    done = cluster.login("apptainer", "run-help", f"/shared/{image}.sif", seconds=120)
    assert (done.returncode, "apptainer exec --nv train.sif train" in done.stdout) == (0, True), done.stdout


@BOTH
@pytest.mark.parametrize(
    ("app", "words", "shown"),
    [("entrypoint", ("show", "--json", "--device", "cpu"), '"launcher": "local"'), ("train", ("check",), "quickstart")],
)
def test_its_apps_are_our_commands(
    cluster: Cluster, built: Path, image: str, app: str, words: tuple[str, ...], shown: str
) -> None:
    done = cluster.login("apptainer", "--quiet", "run", "--app", app, f"/shared/{image}.sif", *words, seconds=120)
    assert (done.returncode, shown in done.stdout) == (0, True), done.stdout


def test_the_sif_of_the_oci_image_names_no_folder_of_its_builder(cluster: Cluster, sif: Path) -> None:
    shown = cluster.login("apptainer", "inspect", "--all", "/shared/train.sif", seconds=120).stdout
    assert '"deffile"' in shown
    assert str(sif.parent) not in shown


def test_no_file_gives_more_rights(cluster: Cluster, built: Path) -> None:
    assert inside(cluster, "definition", "find", "/usr", "/opt", "/etc", "-perm", "/6000").stdout == ""


def test_nothing_of_the_build_is_left_in_the_image(cluster: Cluster, built: Path) -> None:
    places = "/etc/pip.conf /mnt/* /opt/source /opt/tmp /var/lib/apt/lists/* /var/cache/apt/archives/*.deb"
    assert inside(cluster, "definition", "bash", "-c", f"ls -d {places} 2>/dev/null").stdout == ""


def test_the_hosts_tmp_is_as_it_was(built: Path) -> None:
    assert (built / "tmp-afterwards").read_text() == (built / "tmp-before").read_text()


def test_two_ranks_train_in_it(cluster: Cluster, built: Path, place: Callable[[str], str]) -> None:
    cwd = place("built-by-the-user")
    folder = cluster.shared / Path(cwd).name
    (folder / "config.yaml").write_text(TEN_STEPS.replace("max_steps: 10", "max_steps: 2"))
    train = "srun --kill-on-bad-exit=1 apptainer exec /shared/definition.sif train"
    script = f"{train} check --config config.yaml\n{train} --config config.yaml"
    ended = cluster.submit("-n2", script=script, cwd=cwd, OMP_NUM_THREADS="1").wait()
    assert ended.code == 0, ended.output
    run = Run(folder=folder / "runs" / "run")
    assert (run.record["world"]["world_size"], run.logged()) == (2, [1, 2])
