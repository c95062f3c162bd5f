"""From a plan to the environment of each rank, seen from inside the ranks."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from machines import captured, machine
from processes import candidates, free_port, python

from entrypoint import network
from entrypoint.errors import ExitCode, Failure
from entrypoint.handover import Handover
from entrypoint.hang import HangTimeouts, SupervisionPolicy
from entrypoint.launch import _flight_recorder_variables, run_plan
from entrypoint.launchers import detect_allocation
from entrypoint.machine import num_usable_cores
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan, plan_allocation
from entrypoint.run_errors import ExitRecord, RunErrors
from entrypoint.world import TORCHRUN_VARIABLES

FIRST_POD = {"PET_NNODES": "2", "PET_NODE_RANK": "0"}
TELL = "import json, os; print(json.dumps(dict(os.environ)))"


def environments(tmp_path: Path, *options: str, ranks: int = 2, **environ: str) -> list[dict[str, str]]:
    line = ["-m", "entrypoint", "run", "--device", "cpu", "--procs-per-node", str(ranks), *options, "--"]
    done = python(*line, "python3", "-c", TELL, environ=environ, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    logs = [(tmp_path / f"logs/rank-{rank:04d}.log").read_text() for rank in range(ranks)]
    return [json.loads(log.splitlines()[-1]) for log in logs]


def test_each_rank_gets_the_whole_contract(tmp_path: Path) -> None:
    first, second = environments(tmp_path)
    assert all(name in first for name in TORCHRUN_VARIABLES.values())
    assert [e["RANK"] + e["LOCAL_RANK"] + e["WORLD_SIZE"] for e in (first, second)] == ["002", "112"]


def test_a_command_on_the_cpu_sees_no_gpu_and_accelerate_is_told(tmp_path: Path) -> None:
    for rank in environments(tmp_path, CUDA_VISIBLE_DEVICES="0,1", ACCELERATE_USE_CPU="False"):
        assert (rank["ACCELERATE_USE_CPU"], rank["CUDA_VISIBLE_DEVICES"]) == ("true", "")


def test_what_a_command_on_the_cpu_gets_instead_of_the_users_variables_is_said(tmp_path: Path) -> None:
    line = ("-m", "entrypoint", "run", "--device", "cpu", "--", "true")
    done = python(*line, environ={"CUDA_VISIBLE_DEVICES": "0"}, cwd=tmp_path)
    assert "note: not used, the ranks compute on the CPU: CUDA_VISIBLE_DEVICES=0\n" in done.stderr
    assert "ACCELERATE_USE_CPU" not in done.stderr


def test_a_command_on_a_gpu_keeps_its_devices(tmp_path: Path) -> None:
    node = machine(gpus=("GPU-fake-0",))
    plan = plan_allocation(detect_allocation({}, LaunchOptions(), node), LaunchOptions(), node, {})
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    environ.pop("ACCELERATE_USE_CPU", None)
    assert run_plan(plan, [sys.executable, "-c", TELL], environ, log_dir=tmp_path, foreign=True) == 0
    seen = json.loads((tmp_path / "rank-0000.log").read_text().splitlines()[-1])
    assert (seen["CUDA_VISIBLE_DEVICES"], seen.get("ACCELERATE_USE_CPU")) == ("0", None)


ACCELERATED = """
import os, torch
from accelerate import Accelerator
accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(2, 1))
accelerator.backward(model(torch.full((3, 2), accelerator.process_index + 1.0)).sum())
gradient = next(model.parameters()).grad.flatten().tolist()
print(accelerator.num_processes, accelerator.process_index, accelerator.device.type, gradient, flush=True)
accelerator.wait_for_everyone()
accelerator.end_training()
os._exit(0)  # gloo's threads may abort in the end of the interpreter
"""


@pytest.mark.needs_torch
def test_a_script_with_accelerate_is_one_world_of_two_ranks_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ACCELERATED)
    line = ("-m", "entrypoint", "run", "--device", "cpu", "--procs-per-node", "2", "--", sys.executable, "script.py")
    done = python(*line, environ={"OMP_NUM_THREADS": "1"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    logs = [(tmp_path / f"logs/rank-{rank:04d}.log").read_text().splitlines()[-1] for rank in range(2)]
    # Three images of 1, and three of 2: each rank has the mean of both gradients.
    assert logs == ["2 0 cpu [4.5, 4.5]", "2 1 cpu [4.5, 4.5]"]


def test_all_ranks_meet_at_one_address(tmp_path: Path) -> None:
    meetings = {(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in environments(tmp_path, ranks=3)}
    assert len(meetings) == 1


def test_a_port_that_the_user_gives_is_the_one_that_ranks_of_one_machine_meet_on(tmp_path: Path) -> None:
    given = str(free_port())
    environs = environments(tmp_path, MASTER_PORT=given)
    assert {(e["MASTER_PORT"], *Handover.from_environ(e).ports) for e in environs} == {(given, int(given))}


def test_a_port_that_the_user_gives_on_one_machine_and_another_process_has_is_refused(tmp_path: Path) -> None:
    with network.bind_first_free("127.0.0.1", candidates("given here")) as taken:
        plan = planned({"MASTER_PORT": str(taken.getsockname()[1])})
        with pytest.raises(Failure, match="taken by another process") as caught:
            run_plan(plan, ["true"], dict(os.environ), log_dir=tmp_path, foreign=True)
    assert caught.value.code == 69


def test_threads_are_shared_among_ranks_unless_the_user_says(tmp_path: Path) -> None:
    assert environments(tmp_path, OMP_NUM_THREADS="3")[0]["OMP_NUM_THREADS"] == "3"
    expected = max(1, num_usable_cores() // 2)
    assert environments(tmp_path, OMP_NUM_THREADS="")[0]["OMP_NUM_THREADS"] == str(expected)


BINDING = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores", "GOMP_CPU_AFFINITY": "0"}


def test_ranks_that_would_all_be_bound_to_the_first_core_are_not_and_it_is_said_once(tmp_path: Path) -> None:
    line = ("-m", "entrypoint", "run", "--device", "cpu", "--procs-per-node", "2", "--", "python3", "-c", TELL)
    done = python(*line, environ=BINDING, cwd=tmp_path)
    logs = [json.loads((tmp_path / f"logs/rank-{rank:04d}.log").read_text().splitlines()[-1]) for rank in range(2)]
    assert not any(set(BINDING) & set(log) for log in logs)
    note = "not used, all ranks of a node would share its first core: OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY"
    assert done.stderr.count(note) == 1


def test_a_rank_alone_keeps_its_users_binding(tmp_path: Path) -> None:
    assert environments(tmp_path, ranks=1, **BINDING)[0].items() >= BINDING.items()


def test_ranks_are_told_which_variables_are_not_the_users_own(tmp_path: Path) -> None:
    first = environments(tmp_path, OMP_NUM_THREADS="3")[0]
    assert Handover.from_environ(first).added == ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def test_ranks_of_one_host_talk_over_loopback_only(tmp_path: Path) -> None:
    first = environments(tmp_path)[0]
    assert (first["GLOO_SOCKET_IFNAME"], first["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")


def test_an_interface_that_the_user_chose_is_kept(tmp_path: Path) -> None:
    assert environments(tmp_path, GLOO_SOCKET_IFNAME="eth7")[0]["GLOO_SOCKET_IFNAME"] == "eth7"


def test_our_own_interface_variable_sets_both_libraries(tmp_path: Path) -> None:
    first = environments(tmp_path, ENTRYPOINT_INTERFACE="lo", GLOO_SOCKET_IFNAME="eth0")[0]
    assert (first["GLOO_SOCKET_IFNAME"], first["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")


def test_an_interface_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    line = ("-m", "entrypoint", "run", "--device", "cpu", "--procs-per-node", "2", "--", "true")
    done = python(*line, environ={"ENTRYPOINT_INTERFACE": "nosuch0"}, cwd=tmp_path)
    assert done.returncode == 76
    assert "one of lo" in done.stderr


def test_a_home_that_cannot_be_written_gets_a_private_stand_in_that_goes_with_the_run(tmp_path: Path) -> None:
    home = environments(tmp_path, HOME="/proc", ranks=1)[0]["HOME"]
    assert home != "/proc"
    assert not Path(home).exists()


def test_a_leaked_pythonpath_does_not_reach_the_ranks_and_is_said(tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "json.py").write_text("raise SystemExit('hijacked')")
    line = ("-I", "-m", "entrypoint", "run", "--device", "cpu", "--", "python3", "-c", "import json; print('clean')")
    done = python(*line, environ={"PYTHONPATH": str(evil)}, cwd=tmp_path)
    assert done.stdout == "clean\n"
    assert "note: not used, it would change what is imported: PYTHONPATH" in done.stderr


def test_a_foreign_script_imports_the_module_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("answer = 42")
    (tmp_path / "script.py").write_text("import beside; print(beside.answer)")
    line = ("-m", "entrypoint", "run", "--device", "cpu", "--", "python3", "script.py")
    assert python(*line, environ={"PYTHONSAFEPATH": "1"}, cwd=tmp_path).stdout == "42\n"


def planned(environ: dict[str, str]) -> Plan:
    options, here = LaunchOptions(device="cpu"), machine()
    return plan_allocation(detect_allocation(environ, options, here), options, here, environ)


def test_a_master_whose_name_does_not_resolve_is_refused_before_any_start(tmp_path: Path) -> None:
    plan = planned(captured("per-gpu/task-0@node01") | {"MASTER_ADDR": "no-such-host.invalid"})
    with pytest.raises(Failure, match="does not resolve") as caught:
        run_plan(plan, ["touch", str(tmp_path / "started")], dict(os.environ), log_dir=tmp_path, foreign=True)
    assert caught.value.code == 69
    assert not (tmp_path / "started").exists()


def test_a_pod_waits_until_the_name_of_rank_0s_pod_resolves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def resolve_all(host: str) -> tuple[str, ...]:
        asked.append(host)
        if len(asked) < 3:
            raise Failure(f"{host} does not resolve", fix="start that pod", code=ExitCode.PEER)
        return ("127.0.0.1",)

    monkeypatch.setattr(network, "resolve_all", resolve_all)
    monkeypatch.setattr("entrypoint.launch.NAME_INTERVAL_S", 0.01)
    pet = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "train-0.train"}
    assert run_plan(planned(pet), ["true"], dict(os.environ), log_dir=tmp_path, foreign=True) == 0
    assert "waiting for rank 0: 'train-0.train' does not resolve yet" in capfd.readouterr().err


def test_the_rank_that_mpiexec_started_does_not_get_its_closed_socket(tmp_path: Path) -> None:
    environ = {**os.environ, "PMI_FD": "7"}
    command = ["sh", "-c", f"echo ${{PMI_FD:-none}} > {tmp_path}/seen"]
    run_plan(planned({}), command, environ, log_dir=tmp_path, foreign=True)
    assert (tmp_path / "seen").read_text() == "none\n"


def test_a_taken_port_given_for_a_foreign_command_is_refused(tmp_path: Path) -> None:
    with network.bind_first_free("127.0.0.1", candidates("foreign")) as taken:
        environ = FIRST_POD | {"PET_MASTER_ADDR": "localhost"}
        plan = planned(environ | {"MASTER_PORT": str(taken.getsockname()[1])})
        with pytest.raises(Failure, match="taken by another process"):
            run_plan(plan, ["true"], dict(os.environ), log_dir=tmp_path, foreign=True)


@pytest.mark.parametrize(("address", "noted"), [("192.0.2.1", True), ("127.0.0.1", False)])
def test_a_foreign_command_may_meet_at_a_services_address_and_is_told_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], address: str, noted: bool
) -> None:
    plan = planned(FIRST_POD | {"PET_MASTER_ADDR": address})
    assert port_of(plan, tmp_path) == str(plan.ports[0])
    assert (f"address {address} is not this host's own" in capfd.readouterr().err) is noted


def on_one_node(rank: int, first_port: int) -> Plan:
    """One of the two tasks that mpirun has started here."""
    numbers = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}
    environ = {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in numbers.items()}
    plan = planned(environ)
    return replace(plan, ports=(first_port, *plan.ports))


def port_of(plan: Plan, folder: Path) -> str:
    """The port that a foreign command of this task is told."""
    command = [sys.executable, "-c", "import os; print(os.environ['MASTER_PORT'])"]
    assert run_plan(plan, command, dict(os.environ), log_dir=folder, foreign=True) == 0
    return (folder / f"rank-{plan.world.rank:04d}.log").read_text().strip()


def test_tasks_of_one_node_agree_on_the_port_of_a_foreign_command(tmp_path: Path) -> None:
    with network.bind_first_free("127.0.0.1", candidates("agree")) as listener:
        port = listener.getsockname()[1]
    assert {port_of(on_one_node(rank, port), tmp_path) for rank in (0, 1)} == {str(port)}


def test_a_taken_port_that_the_other_tasks_of_a_node_would_look_for_is_refused_by_its_number(tmp_path: Path) -> None:
    with network.bind_first_free("127.0.0.1", candidates("neighbour")) as taken:
        port = taken.getsockname()[1]
        assert port_of(on_one_node(1, port), tmp_path) == str(port)
        with pytest.raises(Failure, match=f"ports {port}\n") as caught:
            run_plan(on_one_node(0, port), ["true"], dict(os.environ), log_dir=tmp_path, foreign=True)
    assert caught.value.code == 69


def test_what_a_rank_hands_on_to_the_next_job_is_refused_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    first = dict(os.environ) | {"PBS_JOBID": "6.pbs"}
    assert run_plan(planned(first), command, first, log_dir=tmp_path, foreign=True) == 0
    handed_on = json.loads((tmp_path / "rank-0000.log").read_text())
    assert detect_allocation(handed_on, LaunchOptions(), machine()).launcher == "torchrun"
    with pytest.raises(Failure, match=r"of another launch[^$]*of 6.pbs, and this is 7.pbs"):
        detect_allocation(handed_on | {"PBS_JOBID": "7.pbs"}, LaunchOptions(), machine())


def test_gpus_that_a_rank_on_the_cpu_does_not_see_are_not_hidden_from_the_next_job(tmp_path: Path) -> None:
    first = environments(tmp_path, ranks=1, PBS_JOBID="6.pbs")[0]
    with pytest.raises(Failure, match="of another launch") as caught:
        detect_allocation(first | {"PBS_JOBID": "7.pbs"}, LaunchOptions(), machine())
    assert "ACCELERATE_USE_CPU CUDA_VISIBLE_DEVICES" in caught.value.fix


def test_one_task_that_starts_all_ranks_passes_over_a_taken_port(tmp_path: Path) -> None:
    with network.bind_first_free("127.0.0.1", candidates("passed")) as taken:
        port = taken.getsockname()[1]
        plan = planned({})
        assert port_of(replace(plan, ports=(port, *plan.ports)), tmp_path) != str(port)


# What a rank of ours does for a parent that listens: it says where it is, and that it has come to its end.
RANK = """
import os, time
from entrypoint import Handover, attach_heartbeat
pulse = attach_heartbeat(os.environ)
pulse.beat("step", step=1)
pulse.beat("step", step=2)
launch_id = Handover.from_environ(os.environ).launch_id
open("attempts", "a").write(os.environ["ENTRYPOINT_ATTEMPT"] + " " + launch_id + chr(10))
"""
END = 'pulse.beat("end")'
FIRST = 'os.environ["ENTRYPOINT_ATTEMPT"] == "0" and '


def care(tmp_path: Path, restarts: int = 0, step: float = 60) -> SupervisionPolicy:
    """Keeps failures in the test's folder."""
    limits = HangTimeouts(start=60, step=step, evaluation=60, save=60, data=60)
    return SupervisionPolicy(limits=limits, errors=RunErrors(tmp_path), restarts=restarts)


def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, restarts: int = 0, step: float = 60) -> int:
    """One rank of ours that runs this script."""
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", RANK + script]
    watched = care(tmp_path, restarts, step)
    return run_plan(planned({}), command, dict(os.environ), log_dir=tmp_path, foreign=False, policy=watched)


def test_success_that_a_rank_has_said_is_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours(tmp_path, monkeypatch, END) == 0


@pytest.mark.parametrize("code", [0, 75])
def test_success_before_the_end_of_the_work_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    assert ours(tmp_path, monkeypatch, f"os._exit({code})") == 69
    (error,), exit_record = RunErrors(tmp_path).read(), RunErrors(tmp_path).read_exit()
    assert f"left with exit code {code} before its work was done" in error.failure.what
    assert (error.rank, error.killed, error.symptom) == (0, False, False)
    assert exit_record == ExitRecord(code=69, step=2, cause=error.failure.what)


def test_a_silent_rank_ends_the_run_with_91(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours(tmp_path, monkeypatch, "time.sleep(600)", step=1) == 91
    exit_record = RunErrors(tmp_path).read_exit()
    assert exit_record is not None
    assert "last finished step 2 and sits in the step" in exit_record.cause
    assert (exit_record.code, exit_record.step) == (91, 2)


def test_a_lost_rank_is_started_again_in_place_as_a_start_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ours(tmp_path, monkeypatch, f"{FIRST}os.kill(os.getpid(), 9); {END}", restarts=2) == 0
    attempts = [line.split() for line in (tmp_path / "attempts").read_text().splitlines()]
    assert [number for number, _ in attempts] == ["0", "1"]
    assert attempts[0][1] != attempts[1][1]


@pytest.mark.parametrize(("script", "starts"), [("os._exit(69)", 3), ("os._exit(65)", 1)])
def test_restarts_are_counted_and_help_only_against_accidents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, starts: int
) -> None:
    ours(tmp_path, monkeypatch, script, restarts=2)
    assert len((tmp_path / "attempts").read_text().splitlines()) == starts


def test_each_start_that_is_followed_by_another_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reported: list[int] = []
    command, watched = [sys.executable, "-c", RANK + "os._exit(69)"], replace(care(tmp_path, 2), failed=reported.append)
    run_plan(planned({}), command, dict(os.environ), log_dir=tmp_path, foreign=False, policy=watched)
    assert reported == [69, 69]


def test_nccls_flight_recorder_writes_into_the_runs_folder(tmp_path: Path) -> None:
    on_gpus = replace(planned(captured("per-gpu/task-0@node01")), device="cuda")
    assert _flight_recorder_variables(on_gpus, care(tmp_path), {}) == {
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/nccl-rank-"
    }


@pytest.mark.parametrize("name", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
def test_nccls_flight_recorder_writes_where_the_user_says(tmp_path: Path, name: str) -> None:
    on_gpus = replace(planned(captured("per-gpu/task-0@node01")), device="cuda")
    assert _flight_recorder_variables(on_gpus, care(tmp_path), {name: "/scratch/trace-"}) == {}


def test_the_folder_of_the_flight_recorder_is_there_before_a_rank_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    watched = replace(care(tmp_path), errors=RunErrors.in_run(tmp_path / "run"))
    command = [sys.executable, "-c", RANK + "os.rmdir('run/errors')\n" + END]  # 1 where it is not there
    assert run_plan(planned({}), command, dict(os.environ), log_dir=tmp_path, foreign=False, policy=watched) == 0


def test_nothing_is_recorded_without_gpus(tmp_path: Path) -> None:
    assert _flight_recorder_variables(planned(captured("per-gpu/task-0@node01")), care(tmp_path), {}) == {}
