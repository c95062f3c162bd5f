"""The job scripts as far as they go without Slurm and Apptainer: settings, options, lines, digests, codes."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from train.run import exit_file

LAUNCH = Path(__file__).parents[1] / "launch"
IN_A_JOB = {"SLURM_JOB_ID": "7"}
BROKEN_SETTINGS = {
    "a test in the last line": b"[[ -d /nowhere ]] && export A=1\n",
    "leaves the shell": b"exit 0\n",
    "a module that is not there": b"module load nowhere\nexport A=1\n",
    "Windows line ends": b"export A=1\r\nexport B=2\r\n",
}
LINES = "train.max_steps=1\ntrain.max_steps=2 'optim.args={nesterov: true}\n\n"
UNREADABLE = {"a quote has no end": "2", "empty": "3", "beyond the last": "4", "they count from 1": "0", "no array": ""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder. Nothing here reads the image, so any file stands for it."""
    for name, text in {"train.sif": "image", "config.yaml": "", "lr.txt": LINES}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def start(folder: Path, script: Path | str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in the folder, with an environment of its own."""
    environ = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        [LAUNCH / script, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip


def digest(folder: Path) -> str:
    """What a job in the folder says of its image."""
    done = start(folder, "singlegpu.sh", "config.yaml", **IN_A_JOB)
    return done.stdout.strip().rpartition("image train.sif sha256:")[2]


@pytest.mark.parametrize("case", BROKEN_SETTINGS)
def test_settings_that_fail_are_named_and_nothing_goes_on(folder: Path, case: str) -> None:
    (folder / "site.env").write_bytes(BROKEN_SETTINGS[case])
    done = start(folder, "singlegpu.sh", "config.yaml", SITE_ENV="./site.env")
    assert (done.returncode, "ERROR[64] ./site.env failed\n  fix: " in done.stderr) == (64, True), done.stderr


def test_settings_that_are_named_and_not_there_are_an_error(folder: Path) -> None:
    done = start(folder, "singlegpu.sh", "config.yaml", SITE_ENV="/nowhere/site.env")
    assert (done.returncode, "ERROR[64] /nowhere/site.env failed\n  fix: " in done.stderr) == (64, True)


def test_a_script_that_is_run_from_another_folder_reads_the_settings_beside_it(folder: Path) -> None:
    shutil.copytree(LAUNCH, folder / "tools")
    (folder / "tools" / "site.env").write_text("exit 0\n")
    done = start(folder, folder / "tools" / "singlegpu.sh", "config.yaml")
    assert f"ERROR[64] {folder}/tools/site.env failed" in done.stderr


def test_options_behind_the_script_are_refused_in_a_job_and_not_lost(folder: Path) -> None:
    done = start(folder, "singlegpu.sh", "--nodes=2", "config.yaml", **IN_A_JOB)
    assert (done.returncode, "belongs: --nodes=2 config.yaml\n" in done.stderr) == (64, True), done.stderr


@pytest.mark.parametrize("words", [(), ("--nodes", "4", "config.yaml"), ("train.epochs=3",), ("--help",)])
def test_what_is_no_config_is_not_taken_for_one(folder: Path, words: tuple[str, ...]) -> None:
    done = start(folder, "multinode.sh", *words)
    assert (done.returncode, done.stderr.startswith("ERROR[64] no CONFIG")) == (64, True), done.stderr
    assert "each one word" in done.stderr


def test_the_config_may_be_named_as_train_itself_wants_it(folder: Path) -> None:
    done = start(folder, "singlegpu.sh", "--config", "config.yaml", **IN_A_JOB)
    assert done.stdout.startswith("image train.sif"), done.stderr


@pytest.mark.parametrize(("script", "site"), [("singlegpu", ""), ("sweep", ""), ("multigpu", "8")])
def test_the_site_s_gpus_of_a_node_are_not_for_a_script_of_one(folder: Path, script: str, site: str) -> None:
    for name, body in {"apptainer": "", "sbatch": 'echo "asks for <${SBATCH_GPUS_PER_NODE-}>"'}.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    variables = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "SBATCH_GPUS_PER_NODE": "8"}
    done = start(folder, f"{script}.sh", "config.yaml", "lr.txt", **variables)
    assert f"asks for <{site}>" in done.stdout


def test_a_script_that_finds_no_image_says_where_it_looked(folder: Path) -> None:
    (folder / "train.sif").unlink()
    done = start(folder, "singlegpu.sh", "config.yaml")
    assert (done.returncode, f"no image at train.sif, seen from {folder}\n" in done.stderr) == (66, True), done.stderr


@pytest.mark.parametrize("text", ["2x", "-1", "1 2", "many"])
def test_a_cap_that_is_no_number_is_refused_and_not_taken_for_none(folder: Path, text: str) -> None:
    done = start(folder, "singlegpu.sh", "config.yaml", MAX_REQUEUES=text)
    assert (done.returncode, f"MAX_REQUEUES={text} is not a number\n  fix: " in done.stderr) == (64, True)


@pytest.mark.parametrize("text", ["1", "true", "yes"])
def test_whatever_asks_for_a_signature_is_understood(folder: Path, text: str) -> None:
    done = start(folder, "singlegpu.sh", "config.yaml", REQUIRE_SIGNED=text)
    assert (done.returncode, "ERROR[77] train.sif is not signed" in done.stderr) == (77, True), done.stderr


@pytest.mark.parametrize("why", UNREADABLE)
def test_a_line_that_cannot_be_read_is_refused_and_not_read_in_part(folder: Path, why: str) -> None:
    done = start(folder, "sweep.sh", "config.yaml", "lr.txt", **IN_A_JOB, SLURM_ARRAY_TASK_ID=UNREADABLE[why])
    assert (done.returncode, "ERROR[64] lr.txt has no line" in done.stderr) == (64, True), done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train.max_steps=1", "run.seed=3 train.max_steps=1 run.name=lr-1"),
        ("train.max_steps=1 run.name=own", "run.seed=3 train.max_steps=1 run.name=own"),
    ],
)
def test_a_line_of_a_sweep_replaces_what_is_set_for_all(folder: Path, line: str, words: str) -> None:
    (folder / "lr.txt").write_text(line)
    (folder / "apptainer").write_text('#!/bin/sh\necho "$@"\n')
    (folder / "apptainer").chmod(0o755)
    common = ("run.name=all", "run.seed=3", "train.max_steps=9")
    done = start(folder, "sweep.sh", "config.yaml", "lr.txt", *common, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert done.stdout == f"exec train.sif train check --config config.yaml {words}\n", done.stderr


def test_an_empty_file_of_lines_is_refused(folder: Path) -> None:
    (folder / "lr.txt").write_text("")
    done = start(folder, "sweep.sh", "config.yaml", "lr.txt")
    assert (done.returncode, "ERROR[66] no file of overrides at 'lr.txt'" in done.stderr) == (66, True)


def test_the_digest_is_that_of_the_image_which_a_link_means_now(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).write_text(name)
    for name in ("two", "one"):  # back to the older
        (folder / "train.sif").unlink()
        (folder / "train.sif").symlink_to(name)
        assert digest(folder) == hashlib.sha256(name.encode()).hexdigest()


@pytest.mark.parametrize("left", ["", "train.sif: OK\n", "6105d6cc"])
def test_what_is_no_digest_beside_the_image_is_not_taken_for_one(folder: Path, left: str) -> None:
    (folder / "train.sif.sha256").write_text(left)
    assert digest(folder) == hashlib.sha256(b"image").hexdigest()


def test_a_digest_beside_the_image_is_not_computed_again(folder: Path) -> None:
    (folder / "train.sif.sha256").write_text("a" * 64 + "  -\n")
    assert digest(folder) == "a" * 64


def code_of(folder: Path, srun: str = "return 9") -> str:
    """The code that a job script ends with, by its own lines, when srun does `srun`."""
    script = (LAUNCH / "singlegpu.sh").read_text()
    lines = script[script.index("folder=$(apptainer") : script.index("if [[ ! $code")]
    asked = 'apptainer() { echo "$FOLDER"; }; srun() { eval "$SRUN"; }; image=train.sif step=()'
    command = ["bash", "-c", f'set -euo pipefail; {asked}\n{lines}\necho "$code"']
    environ = {"FOLDER": str(folder), "SRUN": srun, "PATH": os.environ["PATH"]}
    return subprocess.check_output(command, env=environ, text=True, timeout=20, stdin=subprocess.DEVNULL).strip()


def says(code: str) -> str:
    """What a run does at its end, as the shell's words."""
    return f'mkdir -p "$FOLDER/errors"; printf %s {shlex.quote(code)} >"$FOLDER/errors/exit.json"; return 9'


def test_a_job_ends_with_the_code_that_the_run_wrote_and_not_with_one_that_it_quotes(folder: Path) -> None:
    exit_file.write_exit(folder, code=75, step=3, cause='the log says "code": 70')
    written = (folder / "errors" / "exit.json").read_text()
    assert code_of(folder, says(written)) == "75"


@pytest.mark.parametrize("name", ["low-rank-4", "exit.json", "a [b] *", "errors/rank-0"])
def test_a_job_finds_the_code_whatever_the_run_is_called(folder: Path, name: str) -> None:
    assert code_of(folder / name, says('{"code": 75}')) == "75"


@pytest.mark.parametrize("left", ["", "{", '{"code": ', '{"code": "75"}', '{"code": null}'])
def test_without_a_code_of_the_run_srun_s_counts(folder: Path, left: str) -> None:
    assert code_of(folder, says(left)) == "9"


def test_what_an_earlier_start_said_is_neither_believed_nor_removed(folder: Path) -> None:
    exit_file.write_exit(folder, code=75, step=3, cause="SIGTERM")
    assert (code_of(folder), exit_file.read_exit(folder) is not None) == ("9", True)


def test_a_job_that_is_refused_the_folder_keeps_its_code_when_the_other_ends_meanwhile(folder: Path) -> None:
    assert code_of(folder, says('{"code": 75}').replace("return 9", "return 73")) == "73"


def test_a_requeue_is_told_only_after_slurm_has_taken_it() -> None:
    script = (LAUNCH / "singlegpu.sh").read_text()
    assert script.index("scontrol requeue") < script.index("requeued, start")
