"""What a user's account drags into a job (pip install --user, PYTHONPATH, conda, namesakes) stays outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from bed import Cluster, Done
from runs import TEN_STEPS, Run

EXEC = "apptainer --quiet exec /shared/train.sif"
# Every Python that imports one of these ends, and says so.
FILL = """
site=$(cd ~ && {exec} python -c 'import site; print(site.getusersitepackages())')
mkdir -p "$site" ~/evil
for name in torch yaml accelerate sitecustomize usercustomize; do
  echo 'import sys; sys.exit("HOSTILE " + __file__)' | tee "$site/$name.py" >~/evil/$name.py
done
echo 'import sys; sys.stderr.write("HOSTILE pth")' >"$site/evil.pth"
"""
CONDA = (
    "PYTHONPATH=/home/user/evil PYTHONHOME=/opt/conda PYTHONSTARTUP=/home/user/evil/torch.py CONDA_PREFIX=/opt/conda "
    "CONDA_DEFAULT_ENV=base VIRTUAL_ENV=/opt/conda LD_PRELOAD=/opt/conda/libjemalloc.so LD_LIBRARY_PATH=/opt/conda/lib"
)


@pytest.fixture(scope="module")
def project(cluster: Cluster, place: Callable[[str], str]) -> Iterator[str]:
    """A working directory full of namesakes, and the account's home on node01 as well."""
    work = place("hostile")
    (cluster.here(work) / "cfg.yaml").write_text(TEN_STEPS)
    for package in ("bench", "train", "entrypoint"):
        (cluster.here(work) / package).mkdir()
        (cluster.here(work) / package / "__init__.py").write_text("raise SystemExit('HOSTILE ' + __file__)")
    for module in ("yaml", "torch", "sitecustomize"):
        (cluster.here(work) / f"{module}.py").write_text("raise SystemExit('HOSTILE ' + __file__)")
    filled = cluster.login("srun", "-w", "node01", "bash", "-ec", FILL.format(exec=EXEC))
    assert filled.returncode == 0, filled.stdout
    yield work
    cluster.login("srun", "-w", "node01", "bash", "-c", "rm -rf ~/.local ~/evil")


@pytest.fixture(scope="module")
def trained(cluster: Cluster, project: str) -> Done:
    """Two ranks in the middle of it."""
    srun = f"{CONDA} OMP_NUM_THREADS=1 srun -w node01 -n2 {EXEC} train --config cfg.yaml"
    return cluster.login("bash", "-c", srun, cwd=project, seconds=300)


def test_ranks_import_nothing_of_it(cluster: Cluster, project: str, trained: Done) -> None:
    logs = "".join(path.read_text() for path in (cluster.here(project) / "runs" / "run" / "logs").iterdir())
    assert "HOSTILE" not in trained.stdout + logs
    assert (trained.returncode, Run(folder=cluster.here(project) / "runs" / "run").committed()) == (0, 10)


def test_what_is_kept_out_is_said_in_one_line_each(trained: Done) -> None:
    assert [line for line in trained.stdout.splitlines() if line.startswith("note: ")] == [
        "note: not used, it would change what is imported: PYTHONPATH, PYTHONHOME, PYTHONSTARTUP, "
        "/home/user/.local/lib/python3.13/site-packages",
        "note: LD_PRELOAD names files that are not here and are left out: /opt/conda/libjemalloc.so",
    ]


def test_a_users_own_script_gets_the_images_packages_too(cluster: Cluster, project: str) -> None:
    (cluster.here(project) / "scripts").mkdir()
    (cluster.here(project) / "scripts" / "where.py").write_text("import yaml, torch; print(torch.__file__)")
    command = f"{CONDA} srun -w node01 -n1 {EXEC} entrypoint run --device cpu -- python scripts/where.py"
    done = cluster.login("bash", "-c", command, cwd=project, seconds=300)
    assert done.returncode == 0, done.stdout
    assert "/opt/venv/lib/python3.13/site-packages/torch/__init__.py" in done.stdout
