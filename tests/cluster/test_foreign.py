"""`entrypoint run -- python script.py` on a cluster: a script that only knows torch.distributed trains on all nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from bed import Cluster

RUN = "apptainer --quiet exec /shared/train.sif entrypoint run --device cpu"
SCRIPT = """
import json, sys, torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group("gloo", init_method="env://")
rank = distributed.get_rank()
total = torch.tensor(rank + 1.0)
distributed.all_reduce(total)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.full((3, 2), rank + 1.0)).sum().backward()
gradient = model.module.weight.grad.tolist()
print(json.dumps({"rank": rank, "ranks": distributed.get_world_size(), "total": total.item(), "gradient": gradient}))
distributed.barrier()
distributed.destroy_process_group()
sys.exit(7)
"""
WAYS = {
    "a task per node": f"srun -N2 --ntasks-per-node=1 {RUN} --procs-per-node 2 -- python script.py",
    "a task per GPU": f"srun -N2 --ntasks-per-node=2 --gpus-per-node=2 {RUN} -- python script.py",
    "salloc and srun": f"salloc -Q -N2 -n4 --ntasks-per-node=2 srun {RUN} -- python script.py",
}
Ran = tuple[int, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=WAYS)
def ran(cluster: Cluster, place: Callable[[str], str], request: pytest.FixtureRequest) -> Ran:
    """The exit code, and what each rank's log says, by rank."""
    work = place(f"foreign-{[*WAYS].index(request.param)}")
    (cluster.here(work) / "script.py").write_text(SCRIPT)
    done = cluster.login("env", "OMP_NUM_THREADS=1", "bash", "-c", WAYS[request.param], cwd=work, seconds=300)
    logs = sorted((cluster.here(work) / "logs").glob("rank-*.log"))
    said = [line for log in logs for line in log.read_text().splitlines() if line.startswith("{")]
    return done.returncode, [json.loads(line) for line in said]


def test_the_ranks_of_all_nodes_meet_and_add_up(ran: Ran) -> None:
    assert [(told["rank"], told["ranks"], told["total"]) for told in ran[1]] == [(n, 4, 10.0) for n in range(4)]


def test_ddp_gives_all_ranks_the_mean_gradient(ran: Ran) -> None:
    assert [told["gradient"] for told in ran[1]] == [[[7.5, 7.5]]] * 4  # 3 rows of 1, 2, 3, 4


def test_the_scripts_exit_code_is_the_steps(ran: Ran) -> None:
    assert ran[0] == 7


def test_a_script_that_ignores_the_contract_runs_once_per_rank(cluster: Cluster, work: str) -> None:
    done = cluster.login(*f"srun -N2 --ntasks-per-node=1 {RUN} --procs-per-node 2 -- echo alone".split(), cwd=work)
    logs = sorted((cluster.here(work) / "logs").iterdir())
    assert (done.returncode, [log.read_text() for log in logs]) == (0, ["alone\n"] * 4)


TAKEN = """
python3 -c 'import socket, time; s = socket.create_server(("", 20123)); open("taken", "w"); time.sleep(300)' &
until [[ -e taken ]]; do sleep 0.1; done
MASTER_PORT=20123 srun --kill-on-bad-exit=1 {run} -- python script.py
"""


def test_a_port_that_another_process_holds_is_named_at_once(cluster: Cluster, work: str) -> None:
    (cluster.here(work) / "script.py").write_text(SCRIPT)
    script = TAKEN.format(run=RUN)
    ended = cluster.submit("-N2", "--ntasks-per-node=1", script=script, cwd=work).wait()
    assert "ERROR[69] every port that this run may use on this host is taken by another process" in ended.output
    assert "fix: set MASTER_PORT to a free port" in ended.output
    assert ended.state == "FAILED"
