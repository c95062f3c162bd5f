"""Tasks on two nodes find rank 0 over PMI-1 and through files: late, after a dead attempt, beside stale files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from bed import Cluster

from entrypoint import Handover

STARTS = int(os.environ.get("EXCHANGE_STARTS", "4"))  # 50 for a proof: minutes
LIMITS_S = {"dead": 12, "live": 60}
ADDRESSES = {"node01": "10.77.0.11", "node02": "10.77.0.12", "node03": "10.77.0.13"}
TASKS = 3  # two on the first node, one on the second
PLACE = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
LAUNCHERS = {"PMI-1": f"mpiexec.hydra -n {TASKS} -ppn 2", "files": f"mpirun -n {TASKS}"}
# What a task does: come when it likes; one of a `dead` attempt dies while the others wait for it.
# PMIX_NAMESPACE is Open MPI's id of a start: with the same one each start finds the files of those before it.
TASK = f"""
unset ${{!SLURM_@}}
[[ ! -v PMIX_NAMESPACE ]] || export PMIX_NAMESPACE=again
sleep $((RANDOM % 3)).$((RANDOM % 10))
[[ $1 != dead || ${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}} != $(($3 % {TASKS})) ]] || {{ sleep 2; kill -KILL $$; }}
exec apptainer --quiet exec /shared/train.sif entrypoint run --device cpu --logs logs -- python -c '
import json, os, pathlib, sys
told = dict(os.environ) | {{"HOST": os.uname().nodename}}
pathlib.Path(sys.argv[1], told["RANK"] + ".json").write_text(json.dumps(told))' "$2"
"""
# MPICH's mpiexec may not end by itself: a killed container leaves the process that shows the image's files, which
# keeps the output open. A scheduler ends it then, as `timeout` does here.
SCRIPT = """
for ((start = 1; start <= STARTS; start++)); do
  for attempt in dead live; do
    mkdir -p "$start/$attempt"
    code=0 limit=$LIVE_S
    [[ $attempt == live ]] || limit=$DEAD_S
    timeout --kill-after=5 "$limit" $LAUNCHER bash -c "$TASK" bash "$attempt" "$start/$attempt" "$start" \\
      >"$start/$attempt.out" 2>&1 || code=$?
    echo "$code" >"$start/$attempt.code"
  done
done
"""


@pytest.fixture(scope="module", params=LAUNCHERS)
def starts(cluster: Cluster, place: Callable[[str], str], request: pytest.FixtureRequest) -> list[Path]:
    """The folders of all starts by one launcher."""
    work = place(f"exchange-{request.param}")
    script = SCRIPT.replace("$LAUNCHER", LAUNCHERS[request.param])
    limits = {f"{name.upper()}_S": str(limit) for name, limit in LIMITS_S.items()}
    words = ("-N2", "--ntasks-per-node=2", "--cpus-per-task=1")
    job = cluster.submit(*words, script=script, cwd=work, TASK=TASK, STARTS=str(STARTS), **limits)
    ended = job.wait(STARTS * sum(LIMITS_S.values()))
    assert ended.code == 0, ended.output
    assert len(list(cluster.here(work).glob("logs/hosts-*"))) == (request.param == "files")
    return [cluster.here(work) / str(start + 1) for start in range(STARTS)]


def said(start: Path, attempt: str) -> tuple[int, str]:
    """An attempt's exit code, and what it said."""
    return int((start / f"{attempt}.code").read_text()), (start / f"{attempt}.out").read_text(errors="replace")


def test_no_rank_starts_while_a_task_is_missing(starts: list[Path]) -> None:
    for start in starts:
        code, text = said(start, "dead")
        assert code != 0, (start.name, text)
        assert not list((start / "dead").iterdir()), (start.name, text)


def test_the_next_one_finds_its_own_rank_0(starts: list[Path]) -> None:
    ids = set()
    for start in starts:
        code, text = said(start, "live")
        assert code == 0, (start.name, code, text)
        told = [json.loads((start / "live" / f"{rank}.json").read_text()) for rank in range(TASKS)]
        places = [tuple(each[name] for name in PLACE) for each in told]
        assert places == [("0", "2", "0"), ("1", "2", "0"), ("0", "1", "1")], start.name
        ((address, _, run_id),) = {
            (each["MASTER_ADDR"], each["MASTER_PORT"], Handover.from_environ(each).launch_id) for each in told
        }
        assert address == ADDRESSES[told[0]["HOST"]], start.name
        ids.add(run_id)
    assert len(ids) == len(starts)
