"""Which plan a command line, its variables and its file give, and what `train check` and `train where` say of it."""

from __future__ import annotations

import argparse
import json
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machines import fake_gpus, machine
from processes import bare_python

from entrypoint import ExitCode, Failure, LaunchOptions, Plan
from entrypoint.launchers import detect_allocation
from entrypoint.plan import plan_allocation
from entrypoint.run_errors import ExitRecord, RunError, RunErrors
from train import __main__ as front
from train.checkpoint import format
from train.cli import evaluate, export, launch, predict
from train.cli.launch import TrainArgumentParser
from train.config import load

CPU = ("--device", "cpu")


@pytest.mark.parametrize(
    ("argv", "environ", "spawn"),
    [
        ([], {}, 2),
        ([], {"ENTRYPOINT_PROCS_PER_NODE": "4"}, 4),
        (["--procs-per-node", "8"], {"ENTRYPOINT_PROCS_PER_NODE": "4"}, 8),
    ],
    ids=["file", "variable-over-file", "option-over-variable"],
)
def test_the_command_line_wins_over_variables_and_those_over_the_file(
    argv: list[str], environ: dict[str, str], spawn: int, launched: dict[str, Any]
) -> None:
    front.run_command([*argv, "launch.procs_per_node=2", "launch.device=cpu"], environ)
    assert launched["plan"].spawn == spawn


@pytest.mark.parametrize("setting", ["launch.procs_per_node=2", "launch={device: cpu, procs_per_node: 2}"])
def test_a_setting_that_an_option_of_the_same_line_overrules_is_named(
    setting: str, launched: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    front.run_command([*CPU, "--procs-per-node", "8", setting], {})
    assert f"note: `--procs-per-node 8` wins over `{setting}`" in capsys.readouterr().err
    assert launched["plan"].spawn == 8


def test_the_files_limits_reach_the_hang_watch(tmp_path: Path) -> None:
    config = load.load_config(None, ["launch.timeouts.step=7", "launch.timeouts.data=8", "launch.max_restarts=2"])
    care = launch.supervision_policy(config, tmp_path)
    assert (care.limits.step, care.limits.data, care.restarts) == (7, 8, 2)


def test_what_a_rank_could_not_say_is_kept_in_errors(tmp_path: Path) -> None:
    care = launch.supervision_policy(load.load_config(None, []), tmp_path)
    failure = Failure("rank 1 was killed", fix="start again", code=ExitCode.PEER)
    care.errors.write_cause(RunError(failure=failure, rank=1, host="node02", step=812, killed=True))
    assert json.loads((tmp_path / "errors/rank-0001.json").read_text())["host"] == "node02"
    assert RunErrors.in_run(tmp_path).read_exit() == ExitRecord(code=69, step=812, cause="rank 1 was killed")


def test_under_torchrun_one_worker_is_started_with_the_set_it_was_given(launched: dict[str, Any]) -> None:
    given = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "x"}
    front.run_command(CPU, given)
    plan = launched["plan"]
    assert (plan.launcher, plan.spawn, plan.world.rank, plan.world.world_size) == ("torchrun", 1, 1, 2)


@pytest.mark.parametrize("option", ["--local-rank=1", "--local_rank=1"])
def test_torch_distributed_launch_may_say_the_local_rank_as_an_argument(option: str, launched: dict[str, Any]) -> None:
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    front.run_command([option, *CPU], given)
    assert launched["plan"].world.local_rank == 1


CONTRADICTIONS = {
    "another-precision": {"ACCELERATE_MIXED_PRECISION": "bf16"},
    "another-accumulation": {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "7"},
    "another-engine": {"ACCELERATE_USE_DEEPSPEED": "true"},
}


@pytest.mark.parametrize("command", [[], ["check"]], ids=["train", "check"])
@pytest.mark.parametrize("environ", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_variable_that_contradicts_the_config_is_refused_before_anything_starts(
    environ: dict[str, str], command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run_command([*command, *CPU], environ) == ExitCode.USAGE
    assert next(iter(environ)) in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def on_four_gpus(monkeypatch: pytest.MonkeyPatch, kind: str, *asked: str, **environ: str) -> Plan:
    """The plan for one node with four GPUs."""
    here = machine(gpus=fake_gpus(4))

    def plan_there(environ: Mapping[str, str], options: LaunchOptions) -> Plan:
        return plan_allocation(detect_allocation(environ, options, here), options, here, environ)

    monkeypatch.setattr(launch, "make_plan", plan_there)
    config = load.load_config(None, [f"train.parallel={kind}"])
    arguments = front.build_parser().parse_args(list(asked))
    return launch.plan_launch(config, launch.launch_options(arguments, config, environ), environ)


@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 4), ("dp", 1), ("none", 1)])
def test_a_node_of_four_gpus_gets_the_processes_that_train_parallel_has(
    kind: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = on_four_gpus(monkeypatch, kind)
    assert plan.spawn == ranks
    assert [w for w in plan.warnings if "of 4 visible GPUs are used" in w] or kind != "none"
    assert not plan.warnings or kind == "none"


def test_a_number_of_processes_that_was_asked_for_is_kept_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_four_gpus(monkeypatch, "none", "--procs-per-node", "2").spawn == 2
    monkeypatch.undo()
    assert front.run_command([*CPU, "--procs-per-node", "2", "train.parallel=none"], {}) == ExitCode.USAGE


def test_synchronized_batchnorm_on_several_cpu_ranks_is_refused_before_a_rank_starts() -> None:
    assert front.run_command([*CPU, "--procs-per-node", "2", "train.sync_batchnorm=true"], {}) == ExitCode.USAGE


def test_data_parallel_says_why_not_to_use_it(launched: dict[str, Any]) -> None:
    assert front.run_command([*CPU, "train.parallel=dp"], {}) == 7
    assert "slower than ddp" in launched["plan"].warnings[-1]


def test_options_may_stand_between_settings(launched: dict[str, Any]) -> None:
    assert front.run_command(["optim.lr=1", *CPU, "train.epochs=1", "--procs-per-node", "2", "run.seed=1"], {}) == 7
    assert launched["command"][5:] == ["optim.lr=1", "train.epochs=1", "run.seed=1"]


def looked(monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[int | None]:
    """Let the short form of the doctor say these lines; the data workers that it is asked with."""
    asked: list[int | None] = []

    def look_around(
        plan: Plan, environ: Mapping[str, str], *, workers: int | None, terminal: int | None
    ) -> tuple[str, ...]:
        asked.append(workers)
        return lines

    monkeypatch.setattr(launch, "run_preflight", look_around)
    return asked


def test_what_the_doctor_finds_is_said_before_the_ranks_start(
    launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked(monkeypatch, "warn  memory  little", "              fix: more")
    assert front.run_command(CPU, {}) == 7
    assert capsys.readouterr().err.splitlines()[:2] == ["warn  memory  little", "              fix: more"]


def test_a_node_that_the_doctor_refuses_starts_nothing_and_writes_nothing(
    launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> tuple[str, ...]:
        raise Failure("the driver is too old", fix="another", code=ExitCode.IMAGE_MISMATCH)

    monkeypatch.setattr(launch, "run_preflight", refuse)
    assert front.run_command(CPU, {}) == ExitCode.IMAGE_MISMATCH
    assert (launched, list(tmp_path.iterdir())) == ({}, [])


@pytest.mark.parametrize("code", [ExitCode.NODE, ExitCode.IMAGE_MISMATCH])
def test_a_job_script_learns_which_node_the_doctor_refused(
    launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: ExitCode
) -> None:
    def refuse(*_: object, **__: object) -> tuple[str, ...]:
        raise Failure("not here", fix="another", code=code)

    monkeypatch.setattr(launch, "run_preflight", refuse)
    front.run_command(CPU, {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node02", "HOME": str(tmp_path)})
    assert json.loads((tmp_path / "runs/quickstart/errors/node-node02.json").read_text())["code"] == code


@pytest.mark.parametrize(
    ("settings", "workers"),
    [
        ((), None),
        (("data.workers=4",), None),
        (("data.workers=4", "data.loader=workers"), 4),
        (("data.workers=4", "data.name=cifar10"), 4),
        (("data.workers=4", "data.name=cifar10", "data.loader=memory"), None),
    ],
    ids=["auto", "made images", "by workers", "perhaps by workers", "from memory"],
)
def test_data_workers_of_a_chosen_number_are_compared_with_the_processors(
    monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...], workers: int | None
) -> None:
    asked, options = looked(monkeypatch), LaunchOptions(device="cpu")
    planned = plan_allocation(detect_allocation({}, options, machine()), options, machine(), {})
    launch.print_preflight_findings(planned, load.load_config(None, settings), {})
    assert asked == [workers]


def plan_here(device: str = "auto", **environ: str) -> Plan:
    """The plan on a machine without a driver."""
    options = LaunchOptions(device=device)  # type: ignore[arg-type]
    return plan_allocation(detect_allocation({}, options, machine()), options, machine(), environ)


def saved_run(folder: Path, device: str | None) -> list[str]:
    """The settings of a run with a checkpoint that was saved on this device; None: by a version that did not say it."""
    metadata = {"state": {"step": 20}} | ({} if device is None else {"arithmetic": {"device": device}})
    format.save_checkpoint(folder / "run/checkpoints", step=20, tensors={}, metadata=metadata, keep=9)
    return [f"run.output_dir={folder}", "run.name=run"]


def test_a_run_of_gpus_does_not_go_on_on_the_cpu_unasked(tmp_path: Path) -> None:
    config = load.load_config(None, saved_run(tmp_path, "NVIDIA H100"))
    with pytest.raises(Failure, match="this run has trained on a GPU") as refused:
        launch.refuse_cpu_after_gpu(config, plan_here())
    assert (refused.value.code, "--device cpu" in refused.value.fix) == (ExitCode.NODE, True)
    assert "NVIDIA H100" in str(refused.value.found)


@pytest.mark.parametrize(
    ("device", "settings", "plan"),
    [
        ("NVIDIA H100", (), {"device": "cpu"}),
        ("NVIDIA H100", (), {"CUDA_VISIBLE_DEVICES": ""}),
        ("NVIDIA H100", ("checkpoint.resume=never",), {}),
        ("CPU, AVX2", (), {}),
        (None, (), {}),
    ],
    ids=["asked for", "GPUs hidden", "starts over", "began on the CPU", "an older version"],
)
def test_any_other_run_goes_on_there(
    tmp_path: Path, device: str | None, settings: tuple[str, ...], plan: dict[str, str]
) -> None:
    config = load.load_config(None, [*saved_run(tmp_path, device), *settings])
    launch.refuse_cpu_after_gpu(config, plan_here(**plan))


def test_a_run_of_gpus_whose_newest_checkpoint_is_of_the_cpu_goes_on_there(tmp_path: Path) -> None:
    settings = saved_run(tmp_path, "NVIDIA H100")
    metadata = {"state": {"step": 30}, "arithmetic": {"device": "CPU, AVX2"}}
    format.save_checkpoint(tmp_path / "run/checkpoints", step=30, tensors={}, metadata=metadata, keep=9)
    launch.refuse_cpu_after_gpu(load.load_config(None, settings), plan_here())


def test_what_a_start_would_refuse_is_a_note_of_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["check", *saved_run(tmp_path, "NVIDIA H100")], {}) == 0
    assert "note: here it would not start: this run has trained on a GPU" in capsys.readouterr().out


def test_check_shows_the_effective_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert front.run_command(["check", *CPU, "--procs-per-node", "2", "optim.lr=0.3"], {}) == 0
    shown = capsys.readouterr().out
    assert "2 ranks on 1 node" in shown
    assert "256 = 64 micro x 2 accumulation x 2 ranks" in shown
    assert "31 per epoch, 155 in all; the last 64 samples of an epoch are left out" in shown
    assert "0.3 after 31 steps" in shown
    assert "runs/quickstart (new)" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("sgd", "sgd, weight decay 0.0005, momentum 0.9"),
        ("SGD", "SGD, weight decay 0.0005, momentum 0.9"),
        ("AdamW", "AdamW, weight decay 0.0005"),
        ("Rprop", "Rprop"),
    ],
)
def test_check_shows_of_an_optimizer_what_it_uses(name: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["check", *CPU, f"optim.name={name}", "optim.lr=0.1"], {}) == 0
    assert f"\noptimizer      {shown}\n" in capsys.readouterr().out


def test_check_of_a_run_that_is_there_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/quickstart/logs").mkdir(parents=True)
    assert front.run_command(["check", *CPU], {}) == 0
    assert "runs/quickstart (exists" in capsys.readouterr().out


def test_check_of_a_run_that_would_be_refused_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/quickstart").mkdir(parents=True)
    Path("runs/quickstart/checkpoints").symlink_to("/nowhere")
    assert front.run_command(["check", *CPU], {}) == 0
    assert "WARNING: this run would be refused (77): " in capsys.readouterr().out


def test_check_on_a_machine_without_gpus_says_so_and_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = launch.make_plan

    def without_gpus(environ: Mapping[str, str], options: Any) -> Plan:
        if options.device == "cuda":
            raise Failure("no GPU can be used here", fix="use --nv", code=ExitCode.NODE)
        return real(environ, options)

    monkeypatch.setattr(launch, "make_plan", without_gpus)
    assert front.run_command(["check", "launch.device=cuda", "--procs-per-node", "4"], {}) == 0
    shown = capsys.readouterr().out
    assert "4 ranks on 1 node" in shown
    assert "\ndevice         cuda\n" in shown
    assert "note: here it would not start: no GPU can be used here. fix: use --nv" in shown


NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
CLUSTER = ("check", "--nodes", "2", "--procs-per-node", "4", "--device", "cuda")


def test_check_shows_the_plan_of_a_cluster_on_any_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command([*CLUSTER], NO_GPU) == 0
    shown = capsys.readouterr().out
    assert "\nworld          8 ranks on 2 nodes" in shown
    assert "\ndevice         cuda\n" in shown
    assert "\nprecision      bf16 where the GPUs have it (auto)\n" in shown
    assert "\nglobal batch   256 = 32 micro x 1 accumulation x 8 ranks; the start looks for the largest" in shown
    assert "note: here it would not start: no GPU can be used here" in shown


@pytest.mark.parametrize(
    ("settings", "code"),
    [(["train.global_batch_size=12"], 64), (["train.parallel=none"], 64), (["train.reproducible=bitwise"], 64)],
)
def test_check_refuses_what_such_a_cluster_would_refuse(settings: list[str], code: int) -> None:
    assert front.run_command([*CLUSTER, *settings], NO_GPU) == code


def test_check_of_a_cluster_says_that_it_does_not_know_the_gpus_of_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["check", "--nodes", "4", "--device", "cuda"], NO_GPU) == 0
    shown = capsys.readouterr().out
    assert "4 ranks on 4 nodes" in shown
    assert "one rank for each node is shown: add --procs-per-node" in shown


@pytest.mark.parametrize("words", [["--nodes", "2", "--node-rank", "0"], ["--nodes", "2", "--master-addr", "h"]])
def test_half_of_the_options_of_a_start_are_refused(words: list[str]) -> None:
    assert front.run_command(["check", *CPU, *words], {}) == 64


def test_a_start_needs_all_options_of_several_machines() -> None:
    assert front.run_command(["--nodes", "2", *CPU], {}) == 64


def test_where_prints_the_runs_folder_inside_any_job(capsys: pytest.CaptureFixture[str]) -> None:
    shell_of_two_nodes = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}
    assert front.run_command(["where", "run.output_dir=out", "run.name=mine"], shell_of_two_nodes) == 0
    assert capsys.readouterr().out == "out/mine\n"


def test_check_names_what_would_be_refused_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["check", *CPU], {"RANK": "0"}) == 76
    assert "LOCAL_RANK" in capsys.readouterr().err


@contextmanager
def undisturbed() -> Iterator[None]:
    """Handlers are afterwards what they were."""
    before = {signum: signal.getsignal(signum) for signum in launch.STOP_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@pytest.mark.parametrize(
    ("signum", "code"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGUSR2", 75), ("SIGHUP", 75), ("SIGINT", 130)]
)
def test_a_signal_before_the_start_ends_cleanly_even_twice(signum: str, code: int) -> None:
    script = f"""
import os, signal, sys
from train import __main__ as front
def load(*_):
    os.kill(os.getpid(), signal.{signum})
def show(failure):
    os.kill(os.getpid(), signal.{signum})
    return "stopped"
front.training.load.load_config = load
front.Failure.__str__ = show
sys.argv = ["train"]
sys.exit(front.main())
"""
    assert bare_python("-c", script).returncode == code


@pytest.mark.parametrize(("signum", "code"), [("SIGTERM", 75), ("SIGINT", 0), ("SIGHUP", 0)])
def test_of_signals_that_the_caller_ignores_only_a_terminals_stay_ignored(signum: str, code: int) -> None:
    script = f"""
import os, signal, sys
signal.signal(signal.{signum}, signal.SIG_IGN)
from train import __main__ as front
front.COMMANDS["check"] = lambda *_: os.kill(os.getpid(), signal.{signum}) or 0
sys.argv = ["train", "check"]
sys.exit(front.main())
"""
    assert bare_python("-c", script).returncode == code


@pytest.mark.parametrize(
    ("line", "undone"),
    [
        ("", "the training began"),
        ("--config cfg.yaml optim.lr=1", "the training began"),
        ("predict runs/one photos", "all images were answered; each printed line is complete"),
        ("export runs/one --output model", "the model was written"),
        ("report runs/one", "the report was written"),
        ("--config cfg.yaml check", "the plan was made"),
    ],
)
def test_a_command_that_is_asked_to_stop_says_what_it_has_not_done(line: str, undone: str) -> None:
    with undisturbed(), pytest.raises(Failure, match=f"stopped by SIGTERM before {undone}\n"):
        launch.stop_handler(line.split())(signal.SIGTERM, None)


def test_every_command_of_the_front_door_has_its_words_or_its_own_handler() -> None:
    assert {*front.COMMANDS, *front.COMMAND_MODULES} - {"train", "bench"} == set(launch.STOPPED_BEFORE)


def test_a_bad_command_line_is_a_failure_with_our_code() -> None:
    with pytest.raises(Failure, match="--nothing") as refused:
        TrainArgumentParser(prog="train report").parse_args(["--nothing"])
    assert refused.value.code == ExitCode.USAGE
    assert refused.value.fix is not None
    assert refused.value.fix.startswith("see `train report --help`")


USAGES: dict[str, tuple[TrainArgumentParser, str]] = {
    "eval": (
        evaluate.build_parser(),
        "RUN [--all | --split NAME] [--json] [--per-image FILE.csv] [--report [--explain]] [--config FILE] [options] "
        "[section.key=value ...]",
    ),
    "export": (export.build_parser(), "RUN --output DIR [--format NAME,...] [--config FILE] [section.key=value ...]"),
    "predict": (
        predict.build_parser(),
        "RUN IMAGES... [--top K] [--json | --csv FILE [--all-classes]] [--explain DIR] [--device auto|cpu|cuda] "
        "[--config FILE] [section.key=value ...]",
    ),
}


@pytest.mark.parametrize("name", USAGES)
def test_what_may_be_left_out_stands_in_brackets(name: str) -> None:
    parser, words = USAGES[name]
    assert parser.format_usage() == f"usage: train {name} {words}\n"


@pytest.mark.parametrize("name", USAGES)
def test_every_option_of_a_usage_line_is_explained_and_none_is_left_out(name: str) -> None:
    parser, words = USAGES[name]
    explained = {
        option for action in parser._actions if action.help != argparse.SUPPRESS for option in action.option_strings
    }
    named = set(re.findall(r"--[a-z-]+", words))
    assert named <= explained
    assert "[options]" in words or explained - {"-h", "--help"} == named
