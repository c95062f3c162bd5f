"""All ranks started once: real on the CPU; what NCCL would say is made up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from machines import fake_gpus, machine
from network import joined, missing
from processes import python
from synthetic import HTCONDOR

from entrypoint.doctor import full
from entrypoint.doctor.context import CheckContext
from entrypoint.doctor.full import LaunchResult
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan, plan_allocation

RESULT = {
    "backend": "nccl",
    "ranks": 4,
    "mib": 256,
    "seconds": 0.002,
    "bytes_per_s": 2e11,
    "device": "cuda",
    "interface": "",
}


def planned(gpus: int = 0, nodes: int = 1) -> Plan:
    options = LaunchOptions(nodes=nodes, node_rank=0, master_addr="127.0.0.1")
    here = machine(gpus=fake_gpus(gpus))
    return plan_allocation(detect_allocation({}, options, here), options, here, {})


def always(ended: LaunchResult) -> full.LaunchFunction:
    return lambda words, environ, limit_s: ended


@pytest.mark.needs_torch
def test_two_real_ranks_exchange_and_tell_how_fast() -> None:
    options = LaunchOptions(device="cpu", procs_per_node=2)
    here = plan_allocation(detect_allocation({}, options, machine()), options, machine(), {})
    scene = CheckContext(environ=dict(os.environ), options=options, plan=here)
    (finding,) = full.check_allreduce(scene, ["--device", "cpu", "--procs-per-node", "2"])
    assert finding.state == "ok", finding
    assert "2 ranks over gloo (TCP on lo): every sum right" in finding.text


@pytest.mark.slow
def test_a_node_that_does_not_come_is_named_for_real() -> None:
    words = ["--device", "cpu", "--nodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1"]
    (finding,) = full.allreduce_findings(full.launch_allreduce(words, os.environ, 30.0), planned(nodes=2))
    assert (finding.state, "not all ranks arrived: missing 1" in finding.text) == ("fail", True)
    assert finding.fix


@pytest.mark.needs_torch
def test_ranks_that_are_not_done_hang() -> None:
    words = ["--device", "cpu", "--procs-per-node", "2"]
    (finding,) = full.allreduce_findings(
        full.launch_allreduce(words, os.environ, 0.2), planned()
    )  # less than torch takes to load
    assert (finding.state, "was not done after 0.2 s" in finding.text) == ("fail", True)
    assert "train.distributed.allreduce_check" in finding.fix


@pytest.mark.slow
def test_two_real_machines_exchange_over_their_network(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    doctor = ["-m", "entrypoint", "doctor", "--full", "--device", "cpu", "--output", str(tmp_path), "--nodes", "2"]
    with joined(2) as hosts:
        words = [[*doctor, "--node-rank", str(rank), "--master-addr", hosts[0].address] for rank in (0, 1)]
        with hosts[0].start(*words[0], cwd=tmp_path) as first, hosts[1].start(*words[1], cwd=tmp_path) as second:
            outputs = [process.communicate(timeout=200)[0] for process in (first, second)]
    assert "2 ranks over gloo (TCP on eth0): every sum right" in outputs[0]
    assert "the task of rank 0 reports its speed" in outputs[1]


def test_a_place_whose_start_is_refused_is_not_started() -> None:
    assert full.check_allreduce(CheckContext(environ={}), [], always(LaunchResult(code=0, text=""))) == []


def test_ways_and_speed_are_named() -> None:
    (finding,) = full.allreduce_findings(
        LaunchResult(code=0, text="", result=RESULT, transports=("P2P/CUMEM",)), planned(4)
    )
    assert finding.state == "ok"
    assert "4 ranks over nccl (P2P/CUMEM): every sum right, 200.0 GB/s (256 MiB in 2.0 ms)" in finding.text


def test_one_rank_tells_that_torch_computes() -> None:
    (finding,) = full.allreduce_findings(LaunchResult(code=0, text="", result={**RESULT, "ranks": 1}), planned(1))
    assert (finding.state, "torch computes on the cuda" in finding.text) == ("ok", True)


def test_what_a_rank_says_becomes_the_finding() -> None:
    lost = "ERROR[69] rank 0 could not exchange\n  fix: look at the first\n"
    output = f"{lost}\nERROR[78] rank 2 got a wrong sum\n  found: 3\n  fix: leave it out\nmore\n  fix: another\n"
    (finding,) = full.allreduce_findings(LaunchResult(code=78, text=output), planned(4))
    assert (finding.state, finding.text, finding.fix) == ("fail", "rank 2 got a wrong sum (3)", "leave it out")


def test_an_end_without_words_shows_the_last_line() -> None:
    (finding,) = full.allreduce_findings(LaunchResult(code=1, text="Traceback\nImportError: libfoo.so\n\n"), planned())
    assert (finding.state, "ended with 1: ImportError: libfoo.so" in finding.text) == ("fail", True)


def test_a_task_without_rank_0_leaves_the_telling_to_it() -> None:
    (finding,) = full.allreduce_findings(LaunchResult(code=0, text=""), planned())
    assert (finding.state, "the task of rank 0" in finding.text) == ("ok", True)


@pytest.mark.parametrize("code", [None, 91])
def test_a_hang_of_gpus_names_the_other_way(code: int | None) -> None:
    (finding,) = full.allreduce_findings(LaunchResult(code=code, text=""), planned(2))
    assert (finding.state, "NCCL_P2P_DISABLE=1" in finding.fix, "IOMMU" in finding.fix) == ("fail", True, True)


def test_nccls_logs_tell_the_ways() -> None:
    logs = [
        "host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n",
        "host:1:2 [0] NCCL INFO Channel 01/0 : 1[1] -> 2[0] [send] via NET/Socket/1\nvia SHM/direct/direct\n",
    ]
    assert full.nccl_transports(logs) == ("NET/Socket", "P2P/CUMEM", "SHM/direct")


def fabric(root: Path, layer: str = "InfiniBand") -> Path:
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "link_layer").write_text(f"{layer}\n")
    return root


@pytest.mark.parametrize(("nodes", "way", "states"), [(2, "NET/Socket", ["ok", "fail"]), (2, "NET/IB", ["ok"])])
def test_tcp_beside_a_fast_network_is_a_failure(tmp_path: Path, nodes: int, way: str, states: list[str]) -> None:
    scene = CheckContext(environ={}, plan=replace(planned(2, nodes), device="cuda"), root=fabric(tmp_path))
    findings = full.check_allreduce(scene, [], always(LaunchResult(code=0, text="", result=RESULT, transports=(way,))))
    assert [finding.state for finding in findings] == states


@pytest.mark.parametrize(
    ("layer", "environ", "state", "words"),
    [
        ("InfiniBand", {"NCCL_NET": "Socket"}, "ok", "as NCCL_NET=Socket says"),
        ("InfiniBand", {"NCCL_IB_DISABLE": "1"}, "ok", "as NCCL_IB_DISABLE=1 says"),
        ("Ethernet", {}, "warn", "mlx5_0 is here and NCCL went over TCP"),
    ],
)
def test_tcp_that_was_chosen_or_may_be_meant_is_none(
    tmp_path: Path, layer: str, environ: dict[str, str], state: str, words: str
) -> None:
    scene = CheckContext(environ=environ, plan=planned(2, 2), root=fabric(tmp_path, layer))
    _, finding = full.check_allreduce(
        scene, [], always(LaunchResult(code=0, text="", result=RESULT, transports=("NET/Socket",)))
    )
    assert (finding.name, finding.state, words in finding.text) == ("transport", state, True)


def test_pairs_that_do_not_exchange_are_named() -> None:
    def launch(words: Sequence[str], environ: Mapping[str, str], limit_s: float) -> LaunchResult:
        assert words[-2:] == ["--procs-per-node", "2"]
        return LaunchResult(code=91 if "GPU-fake-2" in environ["CUDA_VISIBLE_DEVICES"] else 0, text="")

    finding = full.check_gpu_pairs(fake_gpus(4), {}, launch)
    assert finding.state == "fail"
    assert finding.text.endswith(": 0-2, 1-2, 2-3")


def test_pairs_that_all_exchange_are_a_warning() -> None:
    assert full.check_gpu_pairs(fake_gpus(3), {}, always(LaunchResult(code=0, text=""))).state == "warn"


def test_a_hang_of_several_gpus_tries_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full, "read_machine", lambda environ: machine(gpus=fake_gpus(3)))
    findings = full.check_allreduce(
        CheckContext(environ={}, plan=planned(3)), [], always(LaunchResult(code=91, text=""))
    )
    assert [finding.name for finding in findings] == ["all-reduce", "pairs"]
    assert findings[1].text.endswith(": 0-1, 0-2, 1-2")


def test_ranks_that_never_end_are_ended() -> None:
    code, text = full._run_with_timeout([sys.executable, "-c", "import threading; threading.Event().wait()"], {}, 0.5)
    assert (code, text) == (None, "")


@pytest.mark.slow
@pytest.mark.needs_torch
def test_the_full_check_of_two_tasks_that_do_not_know_rank_0_meets_in_the_output_folder(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()

    def check(task: int) -> subprocess.CompletedProcess[str]:
        environ = HTCONDOR | {"_CONDOR_PROCNO": str(task), "HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
        line = ("-m", "entrypoint", "doctor", "--full", "--device", "cpu", "--output", str(tmp_path / "runs"))
        return python(*line, environ=environ, cwd=tmp_path)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(check, (0, 1))
    assert "2 ranks over gloo" in first.stdout, first.stdout + first.stderr
    assert "the all-reduce of this task's ranks worked" in second.stdout
    assert not list((tmp_path / "runs").glob("doctor"))
