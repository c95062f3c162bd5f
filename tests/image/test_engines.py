"""What an engine does to a container: little (shared) memory, signals to process 1, orphans, ports, no root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import until
from containers import Container, Image, call, mounted, settings, writable
from machines import REPOSITORY

pytestmark = pytest.mark.timeout(600)  # the first one may have to build the image

ROOTLESS = REPOSITORY / "tests" / "image" / "rootless"
SHORT = ("data.samples=600", "train.max_steps=2", "train.global_batch_size=64")
ENDLESS = ("data.samples=600", "train.global_batch_size=64", "train.epochs=9999", "log.every_steps=1")
WORKERS = ("data.loader=workers", "data.workers=2")
LARGE = (
    "data.image_size=256",
    "data.samples=500",
    "train.global_batch_size=400",
    "train.micro_batch_size=400",
    "train.max_steps=1",
)  # 75 MiB a batch
MUCH = ("data.loader=memory", "data.image_size=512", "data.samples=2000")  # 1.5 GiB of images
# An orphan: its parent leaves, and the container's init must take its end in.
ORPHAN = """
import os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode()); os._exit(0)
    os._exit(0)
os.wait()
orphan, deadline = os.read(read, 20).decode(), time.monotonic() + 20
while os.path.exists("/proc/" + orphan):
    if time.monotonic() > deadline: sys.exit("a zombie is left: " + open("/proc/" + orphan + "/status").read())
    time.sleep(0.01)
"""
LISTENING = "0A"
LOOPBACK = {"0100007F", "0" * 24 + "01000000", "0" * 16 + "FFFF00000100007F"}


def test_data_workers_train_in_the_64_mb_of_shared_memory_that_engines_give(image: Image) -> None:
    ended = image.run(*SHORT, *WORKERS, options=("--shm-size=64m",))
    assert (ended.code, "ERROR" in ended.output) == (0, False), ended.output


def test_batches_that_do_not_fit_into_it_are_an_error_that_names_the_option(image: Image) -> None:
    ended = image.run(*LARGE, *WORKERS, options=("--shm-size=64m",), seconds=200)
    assert (ended.code, "/dev/shm of 64 MiB" in ended.output) == (71, True), ended.output
    assert "fix: docker run --shm-size=" in ended.output


def test_a_rank_killed_for_want_of_memory_is_71_with_the_option_that_gives_more(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # conmon leaves a file named oom where it was started
    told = image.run("cat", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max", options=LITTLE)
    if str(600 * 2**20) not in told.output:
        pytest.skip(f"machine: {image.engine} limits no memory here")
    ended = image.run(*MUCH, options=LITTLE, seconds=200)
    assert (ended.code, "out of host memory" in ended.output) == (71, True), ended.output
    assert "docker run --memory" in ended.output


LITTLE = ("--memory=600m", "--memory-swap=600m")


def test_a_login_shell_finds_the_image_s_commands(image: Image) -> None:
    ended = image.run("bash", "-lc", "command -v python train entrypoint; python -c 'import torch'")
    found = ["/opt/venv/bin/python", "/usr/local/bin/train", "/usr/local/bin/entrypoint"]
    assert (ended.code, ended.output.splitlines()) == (0, found), ended.output


@pytest.mark.parametrize("options", [(), ("--init",)], ids=["its own init", "a second init"])
def test_an_orphan_is_taken_in_when_it_ends(image: Image, options: tuple[str, ...]) -> None:
    ended = image.run("python", "-c", ORPHAN, options=with_init(image, options))
    assert ended.code == 0, ended.output


@pytest.mark.parametrize(
    ("options", "signal"),
    [
        pytest.param((), "TERM", id="docker kill -s TERM"),
        pytest.param(("--init",), "TERM", id="a second init"),
        pytest.param(("--entrypoint=train",), "TERM", id="train is process 1"),
        pytest.param(("--entrypoint=train",), "USR1", id="train is process 1, another signal"),
    ],
)
def test_a_signal_to_process_1_saves(image: Image, tmp_path: Path, options: tuple[str, ...], signal: str) -> None:
    work = writable(tmp_path / "work")
    options = (*with_init(image, options), mounted(work, "/workspace"))
    with image.started(*ENDLESS, options=options) as container:
        until(lambda: has_stepped(work), 120, container.output)
        ended = container.kill(signal)
    assert ended.code == 75, ended.output
    assert list(work.glob("runs/quickstart/checkpoints/step-*/manifest.json"))


def with_init(image: Image, options: tuple[str, ...]) -> tuple[str, ...]:
    """The options; skips where `--init` is one and this engine has none to give."""
    if "--init" in options:
        tried = call(image.engine, "run", "--rm", "--network=none", *image.options, *options, image.name, "true")
        if "init binary not found" in tried.stdout:
            pytest.skip("podman has no init here: apt-get install catatonit")
    return options


def has_stepped(work: Path) -> bool:
    metrics = work / "runs" / "quickstart" / "metrics.jsonl"
    return metrics.exists() and '"step"' in metrics.read_text()


@pytest.fixture(scope="module")
def two_ranks(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """A training of two ranks on one node, while it trains."""
    work = writable(tmp_path_factory.mktemp("two") / "work")
    words = ("--device", "cpu", "--procs-per-node", "2", *ENDLESS)
    with image.started(*words, options=(mounted(work, "/workspace"),)) as container:
        until(lambda: has_stepped(work), 120, container.output)
        yield container


def test_on_one_node_no_port_is_open_to_the_world(two_ranks: Container) -> None:
    rows = [line.split() for line in two_ranks.exec("cat", "/proc/net/tcp", "/proc/net/tcp6").splitlines()]
    heard = {row[1].split(":")[0] for row in rows if row[3] == LISTENING}
    assert heard, rows  # the store and gloo are there
    assert heard <= LOOPBACK


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder for another user. Each start of pytest takes the rights on its own folders in /tmp back."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_podman_without_root_trains_and_its_files_are_the_user_s(image: Image, open_folder: Path) -> None:
    if image.engine != "podman" or os.getuid() != 0 or not shutil.which("newuidmap"):
        pytest.skip("machine: podman, newuidmap (uidmap) and, to give another user the image's files, root are needed")
    place = call("podman", "image", "mount", image.name).stdout.strip()
    try:
        done = subprocess.run(
            [ROOTLESS, open_folder, place, *rootless(image, open_folder)],
            env={**os.environ, **settings(image, open_folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    finally:
        call("podman", "image", "unmount", image.name)
    assert done.returncode == 0, done.stdout + done.stderr
    checkpoints = open_folder / "home" / "runs" / "quickstart" / "checkpoints"
    assert next(checkpoints.glob("*/manifest.json")).stat().st_uid == 54321


def rootless(image: Image, folder: Path) -> list[str]:
    """The command of that user: the image's own words, which a root file system does not know."""
    options = ["--network=none", "--userns=keep-id", "--user=54321:54321", "--passwd=false", "--workdir=/workspace"]
    options += [mounted(folder / "home", "/workspace"), "--env=PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"]
    runtime = [option for option in image.options if option.startswith("--runtime")]
    start = ["/usr/bin/tini", "-s", "--", "/opt/train-image/start"]
    return ["podman", *runtime, "run", "--rm", *options, "--rootfs", "ROOTFS", *start, *SHORT]
