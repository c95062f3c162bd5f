"""Where things lie on a cluster: what a container or another node does not see is said; nothing hangs or is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bed import Cluster, Done
from runs import TEN_STEPS, Run

EXEC = "apptainer --quiet exec"
TRAIN = "/shared/train.sif train --config cfg.yaml"
UNSEEN = """ERROR[{code}] {name} /shared/elsewhere/{path} is not visible inside the container
  found: of /shared/elsewhere/{path} only /shared exists, and it belongs to the container
  fix: apptainer exec --bind {folder} ..., or for srun and sbatch: export APPTAINER_BIND={folder}
"""
REFUSED = {
    "the configuration": (
        f"{EXEC} /shared/train.sif train --config /shared/elsewhere/cfg.yaml",
        UNSEEN.format(code=66, name="--config", path="cfg.yaml", folder="/shared/elsewhere"),
    ),
    "the data": (
        f"{EXEC} {TRAIN} data.name=folder data.root=/shared/elsewhere/data",
        UNSEEN.format(code=66, name="data.root", path="data", folder="/shared/elsewhere/data"),
    ),
    "the weights": (
        f"{EXEC} {TRAIN} model.weights=/shared/elsewhere/best.safetensors",
        UNSEEN.format(code=66, name="model.weights", path="best.safetensors", folder="/shared/elsewhere"),
    ),
    "the output": (
        f"{EXEC} {TRAIN} run.output_dir=/shared/elsewhere/out",
        UNSEEN.format(code=73, name="run.output_dir", path="out", folder="/shared/elsewhere/out"),
    ),
    "a read-only output": (
        f"{EXEC} --bind /shared/elsewhere:/results:ro {TRAIN} run.output_dir=/results",
        "ERROR[73] cannot write /results\n",
    ),
    "the working directory": (
        f"{EXEC} --no-mount cwd {TRAIN}",
        "ERROR[66] --config cfg.yaml does not exist\n  found: looked in /home/user\n",
    ),
}


@pytest.fixture(scope="module")
def project(cluster: Cluster, place: Callable[[str], str]) -> str:
    """The folder that a user starts from, which Apptainer shows; `elsewhere` beside it is not shown."""
    for name in ("elsewhere", "project"):
        (cluster.here(place(name)) / "cfg.yaml").write_text(TEN_STEPS)
    (cluster.shared / "elsewhere" / "best.safetensors").touch()
    for name in ("data", "out"):
        (cluster.shared / "elsewhere" / name).mkdir()
    (cluster.shared / "link").symlink_to("project")
    return "/shared/project"


def step(cluster: Cluster, command: str, *, cwd: str) -> Done:
    """A task on each of two nodes, which all end when one fails."""
    srun = f"OMP_NUM_THREADS=1 srun -N2 --ntasks-per-node=1 --kill-on-bad-exit=1 {command}"
    return cluster.login("bash", "-c", srun, cwd=cwd, seconds=300)


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_container_does_not_show_is_refused_before_training(cluster: Cluster, project: str, what: str) -> None:
    command, text = REFUSED[what]
    done = cluster.login("srun", "-n1", *command.split(), cwd=project)
    assert text in done.stdout
    assert done.returncode == int(text[6:8])


def test_behind_a_link_the_working_directory_is_not_mounted_and_the_fix_works(cluster: Cluster, project: str) -> None:
    check = f"srun -n1 {EXEC} /shared/train.sif train check --config cfg.yaml"
    done = cluster.login("bash", "-c", f"cd /shared/link; {check}")
    assert "ERROR[66] --config cfg.yaml is not visible inside the container" in done.stdout
    assert 'fix: cd "$(pwd -P)" before you start or submit' in done.stdout
    assert cluster.login("bash", "-c", f'cd /shared/link; cd "$(pwd -P)"; {check}').returncode == 0


def test_the_job_scripts_may_be_submitted_from_behind_a_link(cluster: Cluster, project: str) -> None:
    submit = "cd /shared/link; sbatch --wait --cpus-per-task=4 --output=job.out /shared/launch/multigpu.sh cfg.yaml"
    done = cluster.login("env", "IMAGE=/shared/train.sif", "bash", "-c", f"{submit} run.name=linked", seconds=300)
    assert done.returncode == 0, (cluster.here(project) / "job.out").read_text()
    assert Run(folder=cluster.here(project) / "runs" / "linked").committed() == 10


def test_an_output_folder_of_each_nodes_own_is_refused(cluster: Cluster, project: str) -> None:
    done = step(cluster, f"{EXEC} {TRAIN} run.output_dir=/tmp/out", cwd=project)
    assert "ERROR[73] the run's folder is not the same one on all nodes" in done.stdout
    assert "found: what node01 writes in /tmp/out/run is not there on node02" in done.stdout
    said = cluster.login("srun", "-w", "node01", "cat", "/tmp/out/run/errors/exit.json").stdout
    assert '"code": 73' in said  # srun's own number may be that of a rank that it ended


def test_a_node_without_the_image_is_named_and_ends_the_job(cluster: Cluster, project: str) -> None:
    cluster.login("srun", "-w", "node01", "ln", "-sfn", "/shared/train.sif", "/tmp/only-here.sif")
    done = step(cluster, f"-w node01,node02 {EXEC} {TRAIN.replace('/shared/train', '/tmp/only-here')}", cwd=project)
    assert "could not open image /tmp/only-here.sif" in done.stdout
    assert "srun: error: node02: task 1: Exited with exit code 255" in done.stdout
    assert cluster.login("squeue", "-h", "-t", "PENDING,RUNNING").stdout == ""


def test_names_with_spaces_and_umlauts_work_on_two_nodes(cluster: Cluster, project: str) -> None:
    folder = cluster.here(project) / "Läufe 1"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "Größe 2.yaml").write_text(TEN_STEPS)
    command = f"{EXEC} /shared/train.sif train --config 'Größe 2.yaml' 'run.name=Übung 3'"
    done = step(cluster, command, cwd=f"{project}/Läufe 1")
    assert (done.returncode, Run(folder=folder / "runs" / "Übung 3").committed()) == (0, 10), done.stdout


HOMES = {
    "no home": f"{EXEC} --no-home --bind $PWD",
    "a home that is not writable": f"{EXEC} --home /proc/sys:/home/user",
}


@pytest.mark.parametrize("home", HOMES)
def test_without_a_home_to_write_in_caches_go_to_a_temporary_folder(cluster: Cluster, project: str, home: str) -> None:
    command = f"{HOMES[home]} {TRAIN} 'run.name={home}'"
    done = cluster.login("bash", "-c", f"OMP_NUM_THREADS=1 srun -n1 {command}", cwd=project, seconds=300)
    assert "note: HOME (/home/user) cannot be written: caches go to /tmp/train-home-" in done.stdout
    assert (done.returncode, Run(folder=cluster.here(project) / "runs" / home).committed()) == (0, 10)


def test_a_training_leaves_the_home_as_it_was(cluster: Cluster, project: str, place: Callable[[str], str]) -> None:
    """Or it would use up the quota that homes have. The word for a job's next start goes at the end."""
    home = place("home")
    command = f"{EXEC} --home {home}:/home/user {TRAIN} run.name=quota"
    done = cluster.login("bash", "-c", f"OMP_NUM_THREADS=1 srun -n1 {command}", cwd=project, seconds=300)
    left = [path for path in cluster.here(home).rglob("*") if path.is_file()]
    assert (done.returncode, left) == (0, []), done.stdout
