"""A handle on the project's image: containers that run in bounded time and are always removed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from machines import REPOSITORY

BUILD = REPOSITORY / "tools" / "build-image"
CUDA = "12" if os.environ.get("CUDA") == "12" else "13"  # as `make test-image CUDA=12` sets it
LOCK = REPOSITORY / ("requirements.lock" if CUDA == "13" else f"requirements-cuda{CUDA}.lock")
# What an engine may need: a machine inside a machine often may not raise limits, and may have both kinds of cgroups.
LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
OPTIONS = ((), LIMITS, (*LIMITS, "--cgroups=disabled"))
RUNTIMES = {"podman": ((), ("--runtime=runc",)), "docker": ((),)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a container ended: its exit code, and all it printed."""

    code: int
    output: str

    def lines(self, start: str) -> list[str]:
        """The printed lines that begin like this."""
        return [line for line in self.output.splitlines() if line.startswith(start)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A started container."""

    engine: str
    number: str

    def output(self) -> str:
        """What it has printed so far."""
        return call(self.engine, "logs", self.number).stdout

    def wait(self, seconds: float = 120) -> Ended:
        """Wait for its end; subprocess.TimeoutExpired where it does not come in time."""
        done = call(self.engine, "wait", self.number, seconds=seconds)
        return Ended(code=int(done.stdout.split()[-1]), output=self.output())

    def exec(self, *words: str) -> str:
        """What a command prints that is run beside the others."""
        return call(self.engine, "exec", self.number, *words).stdout

    def kill(self, signal: str, seconds: float = 120) -> Ended:
        """`docker kill -s`: one signal to the first process."""
        call(self.engine, "kill", "-s", signal, self.number)
        return self.wait(seconds)

    def stop(self, seconds: int = 120) -> Ended:
        """`docker stop`: SIGTERM, and SIGKILL after the given time."""
        call(self.engine, "stop", "-t", str(seconds), self.number, seconds=seconds + 30)
        return self.wait(30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The image, the engine that has it, and the options without which it starts nothing here."""

    engine: str
    name: str
    options: tuple[str, ...]

    @contextmanager
    def started(self, *words: str, options: tuple[str, ...] = ()) -> Iterator[Container]:
        """A container for the time of the block, without any network but its own loopback."""
        started = call(self.engine, "run", "--detach", "--network=none", *self.options, *options, self.name, *words)
        if started.returncode:
            raise RuntimeError(f"{self.engine} starts no container: {started.stdout}")
        container = Container(engine=self.engine, number=started.stdout.split()[-1])
        try:
            yield container
        finally:
            call(self.engine, "kill", container.number)  # podman's `rm --force` would ask it to stop first, and wait
            call(self.engine, "rm", "--force", container.number)

    def run(self, *words: str, options: tuple[str, ...] = (), seconds: float = 120) -> Ended:
        """Run a container to its end."""
        with self.started(*words, options=options) as container:
            return container.wait(seconds)


def built() -> Image | str:
    """The image of this checkout, built if it is not there, or one sentence: why there is none."""
    done = call(str(BUILD), "image", seconds=580)
    if done.returncode:
        return done.stdout.strip()
    engine, name = done.stdout.split()[-2:]
    for options in (runtime + limits for runtime in RUNTIMES.get(engine, ()) for limits in OPTIONS):
        tried = call(engine, "run", "--rm", "--network=none", *options, name, "true")
        if tried.returncode == 0:
            return Image(engine=engine, name=name, options=options)
    return f"{engine} builds images here, and runs none"


def settings(image: Image, folder: Path) -> dict[str, str]:
    """Variables that make the engine itself start what it is told to here, for scripts that take no options of ours."""
    if image.engine != "podman" or not image.options:
        return {}
    given = dict.fromkeys(("runtime", "cgroups"), "")
    given |= dict(option.removeprefix("--").split("=", 1) for option in image.options if "ulimit" not in option)
    limits = [option.removeprefix("--ulimit=") for option in image.options if option.startswith("--ulimit=")]
    lines = ["[containers]", f"default_ulimits = {json.dumps(limits)}"]
    lines += [f'cgroups = "{given["cgroups"]}"'] if given["cgroups"] else []
    lines += ["[engine]", f'runtime = "{given["runtime"]}"'] if given["runtime"] else []
    (folder / "containers.conf").write_text("\n".join(lines) + "\n")
    return {"CONTAINERS_CONF": str(folder / "containers.conf")}


def writable(folder: Path) -> Path:
    """A new folder into which every user may write: a container's user is not the one who tests."""
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    return folder


def mounted(folder: Path, path: str) -> str:
    """The option that shows `folder` at `place`; it works with every engine."""
    return f"--volume={folder}:{path}"


def call(*command: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a program with a time-out; its output is one text."""
    return subprocess.run(
        command,
        check=False,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds,
    )
