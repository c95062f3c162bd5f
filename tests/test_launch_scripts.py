"""The job scripts, read and not run: short, self-contained, and the same where they need not differ."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from entrypoint import ExitCode
from train.config import load

LAUNCH = Path(__file__).parents[1] / "launch"
NO_JOBS = ("workstation.sh", "scaling.sh")  # started by hand, and never as a job
SCRIPTS = sorted(path for path in LAUNCH.glob("*.sh") if path.name not in NO_JOBS)
SETTINGS = sorted([LAUNCH / "site.env.example", *LAUNCH.glob("fabric/*.env")])
COMMON = "# From here on the same in every script.\n"
# The tasks of one node and their share of it; what is not here belongs to the site or to the user.
SHAPES = {
    "singlegpu": ("--nodes=1", "--ntasks=1", "--gpus-per-node=1"),
    "multigpu": ("--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=4"),
    "multigpu_srun": ("--nodes=1", "--ntasks-per-node=4", "--gpus-per-node=4"),
    "multinode": ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4"),
    "multinode_srun": ("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4"),
    "sweep": ("--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=1"),
    "torchrun": ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4"),
}


def name_of(path: Path) -> str:
    return str(path.relative_to(LAUNCH))


def options(script: Path) -> list[str]:
    """The words after #SBATCH."""
    lines = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    return " ".join(line.removeprefix("#SBATCH ") for line in lines).split()


def test_every_script_that_was_promised_is_there() -> None:
    assert {path.stem for path in SCRIPTS} == set(SHAPES)


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_fits_on_a_page(script: Path) -> None:
    assert len(script.read_text().splitlines()) <= 55


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_can_be_run_directly(script: Path) -> None:
    assert script.stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_ends_as_every_other_does(script: Path) -> None:
    first = SCRIPTS[0].read_text().split(COMMON)[1]
    assert script.read_text().split(COMMON)[1:] == [first]


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_begins_as_every_other_does(script: Path) -> None:
    begin, end = "set -euo pipefail\n", 'IMAGE=/path/train.sif"\n'
    first = SCRIPTS[0].read_text().split(begin)[1].split(end)[0]
    assert script.read_text().split(begin)[1].split(end)[0] == first


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_asks_for_the_shape_that_its_name_says(script: Path) -> None:
    assert set(SHAPES[script.stem]) <= set(options(script))


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_survives_preemption_and_a_requeue(script: Path) -> None:
    signal = "TERM" if script.stem == "torchrun" else "USR1"
    assert {"--open-mode=append", "--requeue", f"--signal={signal}@120"} <= set(options(script))


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_requeues_the_codes_that_say_so(script: Path) -> None:
    codes = re.findall(r"=~ \^\(([\d|]+)\)\$ ", script.read_text())
    assert codes == ["|".join(str(int(code)) for code in ExitCode if code.requeue)]


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_memory_and_exclusive_use_are_shown_with_a_reason_and_not_asked_for(script: Path) -> None:
    shown = re.findall(r"^##SBATCH --(mem|exclusive)(?:=\S+)?  # \S.{20,}$", script.read_text(), re.M)
    assert shown == ["mem", "exclusive"]
    assert not [word for word in options(script) if word.startswith(("--mem", "--exclusive"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_holds_nothing_of_a_site(script: Path) -> None:
    assert not [word for word in options(script) if word.startswith(("--account", "--partition", "--qos", "--res"))]


@pytest.mark.parametrize("path", SETTINGS, ids=name_of)
def test_every_line_of_settings_has_its_reason_above_it(path: Path) -> None:
    blocks = path.read_text().split("\n\n")[1:]
    assert blocks
    for block in blocks:
        assert re.match(r"# [A-Z\"].*[.:]", block), block


@pytest.mark.parametrize("path", SETTINGS, ids=name_of)
def test_settings_read_twice_are_the_same_as_once(path: Path) -> None:
    text = re.sub(r"^# (?=export|ulimit)", "", path.read_text(), flags=re.M)  # what is only shown, too
    shown = [subprocess.run(
        ["bash", "-c", "set -eu; " + '. /dev/stdin <<<"$0"; ' * times + "export -p", text],
        capture_output=True, text=True, timeout=20, check=True,
    ).stdout for times in (1, 2)]  # fmt: skip
    assert shown[0] == shown[1]
    assert "declare -x" in shown[0]


@pytest.mark.parametrize("path", [path for path in SETTINGS if path.parent.name == "fabric"], ids=name_of)
def test_a_fabric_says_whether_it_was_run(path: Path) -> None:
    head = path.read_text().split("\n\n")[0]
    assert ("Run here" in head) == (path.stem == "ethernet")
    assert "ot run here" in head


@pytest.mark.parametrize("page", ["README.md", "docs/clusters.md", "docs/tutorial/05-imbalance-and-exercises.md"])
def test_a_page_that_names_the_sweep_shows_how_its_file_is_written(page: str, tmp_path: Path) -> None:
    text = (LAUNCH.parent / page).read_text()
    command = re.search(r"printf '.*' .* > lr\.txt", text)
    assert command
    assert command.start() < text.index("launch/sweep.sh")
    subprocess.run(["bash", "-c", command[0]], cwd=tmp_path, timeout=20, check=True)
    rates = [load.load_config(None, line.split()).optim.lr for line in (tmp_path / "lr.txt").read_text().splitlines()]
    assert rates == [0.01, 0.1]


def test_a_site_s_own_settings_are_not_committed() -> None:
    ignored = subprocess.run(["git", "check-ignore", "launch/site.env"], cwd=LAUNCH.parent, timeout=20)
    assert ignored.returncode == 0


def test_the_name_of_a_file_in_a_run_is_no_option_of_a_program(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    errors.mkdir()
    (errors / "exit.json").write_text('{"code": 75}')
    (errors / "rank-0\n--expression=1e touch ran\n.json").touch()  # GNU sed's `e` starts a program
    lines = SCRIPTS[0].read_text().split(COMMON)[1].splitlines()
    left = next(line.partition("; ")[2] for line in lines if line.startswith("folder="))
    reads = [line for line in lines if line.startswith(("mapfile ", "said=", "bad="))]
    program = "\n".join(["folder=. before=nothing code=0", left, *reads, 'echo "$code"'])
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (done.stdout, [path.name for path in tmp_path.iterdir()]) == ("75\n", ["errors"])
