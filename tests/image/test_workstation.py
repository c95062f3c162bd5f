"""launch/workstation.sh: what it refuses before anything starts, the words that GPUs need, whole runs on the CPU."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest
from bed import until
from containers import Image, settings
from machines import REPOSITORY

from train.__main__ import COMMAND_MODULES, COMMANDS

pytestmark = pytest.mark.timeout(600)  # the first one may have to build the image

SCRIPT = REPOSITORY / "launch" / "workstation.sh"
ODD = 'a, "b": *'  # for a working directory
# Stand-ins for what a machine with GPUs has. The engine writes down what it was to run, and runs nothing.
NVIDIA_SMI = """#!/bin/sh
for i in $(seq 0 $((GPUS - 1))); do echo "GPU $i: NVIDIA H100 (UUID: GPU-${i}a1b2c3d-0000)"; done
"""
ENGINE = """#!/bin/sh
case $1 in
  info) echo "$INFO" ;;
  run) for word; do echo "$word"; done >"$WORDS" ;;
esac
"""
BROKEN = "#!/bin/sh\necho 'Cannot connect to the Docker daemon'; exit 1\n"
NVIDIA_CTK = "#!/bin/sh\necho nvidia.com/gpu=0\n"
KNOWS = "Runtimes: io.containerd.runc.v2 nvidia runc"


class Bench:
    """A folder with stand-ins first on the PATH, from which the real script is started."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.work, self.words = folder / "bin", folder / "work", folder / "words"
        self.bin.mkdir()
        self.work.mkdir()

    def put(self, name: str, text: str) -> None:
        """Put one stand-in there."""
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Start the script to its end."""
        path = f"{self.bin}:{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "WORDS": str(self.words), "GPUS": "4", "INFO": KNOWS} | environ
        return subprocess.run(
            [SCRIPT, *words], cwd=self.work, env=variables, capture_output=True, text=True, timeout=200, check=False
        )

    def run(self, *words: str, **environ: str) -> list[str]:
        """The words with which the engine was started."""
        done = self.start(*words, **environ)
        assert done.returncode == 0, done.stderr
        return self.words.read_text().splitlines()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A machine with four GPUs, docker that can give them, and podman that can."""
    made = Bench(tmp_path)
    tools = {"nvidia-smi": NVIDIA_SMI, "docker": ENGINE, "podman": ENGINE, "nvidia-ctk": NVIDIA_CTK}
    for name, text in tools.items():
        made.put(name, text)
    return made


def value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def devices(words: list[str]) -> list[str]:
    return [word.removeprefix("--device=nvidia.com/gpu=") for word in words if word.startswith("--device=")]


@pytest.mark.parametrize("word", ["two", "-1", "2x", "cfg.yaml", "99999", "1.5"])
def test_what_is_not_a_number_of_gpus_is_a_usage_error(bench: Bench, word: str) -> None:
    done = bench.start(word, "--config", "cfg.yaml")
    assert (done.returncode, f"'{word}'" in done.stderr, "fix: " in done.stderr) == (64, True, True)


def test_more_gpus_than_there_are_is_refused_with_their_number(bench: Bench) -> None:
    done = bench.start("5")
    assert (done.returncode, bench.words.exists()) == (78, False)
    assert "5 GPUs wanted, 4 here; fix: launch/workstation.sh 4" in done.stderr


def test_a_gpu_named_that_is_not_there_is_refused(bench: Bench) -> None:
    done = bench.start(CUDA_VISIBLE_DEVICES="1,7")
    assert (done.returncode, "there is no GPU 7 here" in done.stderr) == (78, True)


def test_a_driver_that_fails_is_refused_and_the_cpu_is_named(bench: Bench) -> None:
    bench.put("nvidia-smi", "#!/bin/sh\necho 'Driver/library version mismatch'; exit 18\n")
    done = bench.start()
    assert (done.returncode, "Driver/library version mismatch" in done.stderr) == (78, True)
    assert "launch/workstation.sh 0" in done.stderr
    assert value(bench.run("0"), "ENTRYPOINT_DEVICE=cpu") == "train"


@pytest.mark.parametrize(
    ("words", "visible", "chosen"),
    [
        pytest.param((), None, "0,1,2,3", id="all"),
        pytest.param(("2",), None, "0,1", id="the first two"),
        pytest.param(("02",), None, "0,1", id="a leading zero"),
        pytest.param((), "3,1", "3,1", id="those that are visible, in their order"),
        pytest.param(("1",), "3,1", "3", id="the first of those"),
        pytest.param((), "GPU-2a,GPU-0a1b2c3d-0000", "2,0", id="by UUID"),
    ],
)
def test_docker_is_given_the_gpus_by_number(
    bench: Bench, words: tuple[str, ...], visible: str | None, chosen: str
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert value(bench.run(*words, **environ), "--gpus") == f'"device={chosen}"'


def test_podman_is_given_the_gpus_by_their_cdi_names(bench: Bench) -> None:
    assert devices(bench.run("2", ENGINE="podman")) == ["0", "1"]


def test_a_part_of_a_gpu_is_taken_by_its_name(bench: Bench) -> None:
    bench.put("nvidia-smi", NVIDIA_SMI + "echo '  MIG 3g.40gb Device 0: (UUID: MIG-5c6d)'\n")
    assert value(bench.run(CUDA_VISIBLE_DEVICES="MIG-5c6d"), "--gpus") == '"device=MIG-5c6d"'


def test_podman_that_is_called_docker_is_podman(bench: Bench) -> None:
    assert devices(bench.run("2", ENGINE="docker", INFO="host: {buildahVersion: 1.28.2}")) == ["0", "1"]


@pytest.mark.parametrize(("words", "environ"), [(("0",), {}), ((), {"CUDA_VISIBLE_DEVICES": ""})])
def test_without_gpus_the_cpu_is_asked_for_by_name(
    bench: Bench, words: tuple[str, ...], environ: dict[str, str]
) -> None:
    started = bench.run(*words, **environ)
    assert ("--gpus" in started, "ENTRYPOINT_DEVICE=cpu" in started) == (False, True)


@pytest.mark.parametrize(
    ("engine", "environ", "fix"),
    [("docker", {"INFO": "Runtimes: runc"}, "nvidia-ctk runtime configure"), ("podman", {}, "nvidia-ctk cdi generate")],
)
def test_an_engine_that_finds_no_gpu_is_refused_with_the_command_that_mends_it(
    bench: Bench, engine: str, environ: dict[str, str], fix: str
) -> None:
    bench.put("nvidia-ctk", "#!/bin/sh\nexit 1\n")
    done = bench.start(ENGINE=engine, **environ)
    assert (done.returncode, fix in done.stderr, bench.words.exists()) == (78, True, False)


def test_a_docker_that_knows_no_runtime_of_nvidia_but_has_its_hook_is_asked(bench: Bench) -> None:
    bench.put("nvidia-container-runtime-hook", "#!/bin/sh\n")
    assert value(bench.run(ENGINE="docker", INFO="Runtimes: runc"), "--gpus") == '"device=0,1,2,3"'


def test_a_docker_without_its_daemon_is_said_and_podman_is_taken(bench: Bench) -> None:
    bench.put("docker", BROKEN)
    done = bench.start()
    assert (done.returncode, "docker is here and does not answer" in done.stderr) == (0, True)
    assert devices(bench.words.read_text().splitlines()) == ["0", "1", "2", "3"]


def test_no_engine_that_answers_is_an_error_with_its_words(bench: Bench) -> None:
    bench.put("docker", BROKEN)
    done = bench.start(ENGINE="docker")
    assert (done.returncode, "Cannot connect to the Docker daemon; fix: " in done.stderr) == (69, True)


def test_an_image_that_is_missing_is_told_with_how_to_make_it(bench: Bench) -> None:
    bench.put("docker", ENGINE.replace("esac", "image) exit 1 ;; esac"))
    done = bench.start(ENGINE="docker", IMAGE="mine")
    assert (done.returncode, "docker has no image mine; fix: make image ENGINE=docker" in done.stderr) == (66, True)


def test_a_rootless_docker_s_root_is_the_user(bench: Bench) -> None:
    started = bench.run("0", ENGINE="docker", INFO="Security Options: seccomp rootless")
    assert [started[at + 1] for at, word in enumerate(started) if word == "--user"][-1] == "0:0"


def groups(bench: Bench, engine: str, info: str) -> list[str]:
    """What somebody's groups become."""
    bench.put("id", '#!/bin/sh\n[ "$1" = -G ] && echo 1000 27 998 || echo 1000\n')
    words = bench.run("0", ENGINE=engine, INFO=info)
    return [word.removeprefix("--group-add=") for word in words if word.startswith("--group-add")]


@pytest.mark.parametrize(
    ("engine", "info", "given"),
    [
        ("docker", KNOWS, ["1000", "27", "998"]),
        ("docker", "Security Options: seccomp rootless", []),
        ("podman", "buildahVersion: 1.28.2", ["keep-groups"]),
    ],
)
def test_what_the_user_reads_by_a_group_can_be_read_inside(
    bench: Bench, engine: str, info: str, given: list[str]
) -> None:
    assert groups(bench, engine, info) == given


def test_each_command_of_train_is_passed_on_and_takes_all_gpus(bench: Bench) -> None:
    for command in {*COMMANDS, *COMMAND_MODULES} - {"train"}:
        started = bench.run(command, "runs/NAME")
        assert started[started.index("train") :] == ["train", "train", command, "runs/NAME"]
        assert value(started, "--gpus") == '"device=0,1,2,3"'


def test_the_words_of_train_and_the_variables_of_ours_are_passed_on(bench: Bench) -> None:
    started = bench.run("--config", "my cfg.yaml", "run.name=ä b", NCCL_DEBUG="INFO", IMAGE="mine")
    assert started[started.index("mine") :] == ["mine", "train", "--config", "my cfg.yaml", "run.name=ä b"]
    assert "NCCL_DEBUG" in started
    assert "--tty" not in started


# What a container cannot take from its caller: these are the script's own choice, or mean another machine's files.
NOT_PASSED_ON = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TMPDIR", "HOME"}
NOT_PASSED_ON |= {"CONDA_PREFIX", "VIRTUAL_ENV", "LD_LIBRARY_PATH"}
SITE = {name: "http://proxy:3128" for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY")} | {
    "no_proxy": "localhost",
    "WANDB_API_KEY": "s3cr3t",
    "MLFLOW_TRACKING_USERNAME": "me",
    "HF_TOKEN": "s3cr3t",
    "SSL_CERT_DIR": "/etc",
}


def passed(words: list[str]) -> set[str]:
    return {words[at + 1] for at, word in enumerate(words) if word == "--env"}


def test_each_variable_that_the_pages_say_to_set_is_passed_on_by_name(bench: Bench) -> None:
    yours = tomllib.loads((REPOSITORY / "docs" / "variables.toml").read_text())["yours"]
    wanted = {*yours} - NOT_PASSED_ON
    started = bench.run("0", **dict.fromkeys(wanted, "1") | SITE)
    assert (wanted | {*SITE}) - passed(started) == set()
    assert "s3cr3t" not in " ".join(started)


def mounts(words: list[str]) -> list[str]:
    """The further folders that are shown."""
    found = [words[at + 1] for at, word in enumerate(words) if word == "--mount"]
    return [word.split('"')[1].removeprefix("source=") for word in found if "target=/workspace" not in word]


def test_what_a_variable_names_is_shown_at_the_same_path_once(bench: Bench) -> None:
    for name in ("compat", "db", "bound"):
        (bench.work / name).mkdir()
    (bench.work / "ca.crt").touch()
    work = str(bench.work)
    started = bench.run(
        "0",
        CUDA_COMPAT=f"{work}/compat",
        TORCH_HOME=f"{work}/compat",
        SSL_CERT_FILE=f"{work}/ca.crt",
        MLFLOW_TRACKING_URI=f"sqlite:///{work}/db/mlflow.db",
        WANDB_DIR=f"{work}/bound",
        BINDS=f"{work}/bound",
    )
    assert sorted(path for path in mounts(started) if path.startswith(work)) == [
        f"{work}/{name}" for name in ("ca.crt", "compat", "db")
    ]


@pytest.mark.parametrize(
    ("variable", "text"), [("WANDB_DIR", "/nowhere/wandb"), ("MLFLOW_TRACKING_URI", "http://localhost:5000")]
)
def test_a_path_or_an_address_that_is_another_one_in_the_container_is_said(
    bench: Bench, variable: str, text: str
) -> None:
    done = bench.start("0", **{variable: text})
    assert (done.returncode, f"note: {variable} names {text}" in done.stderr) == (0, True)


def volumes(words: list[str]) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == "--volume"]


def test_folders_to_show_may_have_any_name_and_be_relative(bench: Bench) -> None:
    for name in ("my sets", "*"):
        (bench.work / name).mkdir()
    started = bench.run("0", BINDS=f"{bench.work}/my sets,*:/data:ro")
    assert volumes(started) == [f"{bench.work}/my sets:{bench.work}/my sets", f"{bench.work}/*:/data:ro"]


def test_a_folder_to_show_that_is_not_there_is_refused_and_not_made(bench: Bench) -> None:
    done = bench.start("0", BINDS="/nowhere/data")
    assert (done.returncode, "there is no folder /nowhere/data; fix: " in done.stderr) == (66, True)
    assert not bench.words.exists()


@pytest.fixture
def real(image: Image, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder with a configuration beside the working directory, and what leads the script to the real engine."""
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "größe.yaml").write_text(
        "{run: {name: here}, train: {max_steps: 2, global_batch_size: 64}}"
    )
    (tmp_path / ODD).mkdir()
    chosen = {"ENGINE": image.engine, "IMAGE": image.name, "BINDS": str(tmp_path / "settings")}
    return tmp_path, {**os.environ, **settings(image, tmp_path), **chosen}


def test_a_run_on_the_cpu_leaves_files_of_the_user_in_the_working_directory(real: tuple[Path, dict[str, str]]) -> None:
    folder, environ = real
    command = [SCRIPT, "0", "--config", folder / "settings" / "größe.yaml", "data.samples=600"]
    done = subprocess.run(
        command, cwd=folder / ODD, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (0, False), done.stdout + done.stderr
    committed = next((folder / ODD / "runs" / "here").glob("checkpoints/step-*/manifest.json"))
    assert committed.stat().st_uid == os.getuid()


def test_a_signal_to_the_script_saves_and_ends_with_75(real: tuple[Path, dict[str, str]]) -> None:
    folder, environ = real
    work, written = folder / ODD, folder / "output"
    with written.open("w") as output:
        command = [SCRIPT, "0", "train.epochs=9999", "data.samples=600", "train.global_batch_size=64"]
        running = subprocess.Popen(command, cwd=work, env=environ, stdout=output, stderr=output)
    try:
        until(lambda: '"step"' in text(work / "runs" / "quickstart" / "metrics.jsonl"), 200, written.read_text)
        running.terminate()
        assert running.wait(100) == 75, written.read_text()
    finally:
        running.kill()
    assert list((work / "runs" / "quickstart").glob("checkpoints/step-*/manifest.json"))


def text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
