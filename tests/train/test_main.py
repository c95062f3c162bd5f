"""The command `train` up to the point where workers start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from images import write_classes
from machines import fake_gpus, machine

from entrypoint import ExitCode, Failure, Options, Plan
from entrypoint.detect import detect
from entrypoint.plan import plan
from train import __main__ as front
from train.checkpoint import manifest
from train.settings import schema

CPU = ("--device", "cpu")


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the front door would run, instead of running it; signal handlers are put back."""
    handlers = {signum: signal.getsignal(signum) for signum in front.STOPPING}
    seen: dict[str, Any] = {}

    def note(plan: Plan, command: Sequence[str], environ: Mapping[str, str], *, log_dir: Path, foreign: bool) -> int:
        seen.update(plan=plan, command=list(command), environ=environ, log_dir=log_dir, foreign=foreign)
        return 7

    monkeypatch.setattr(front, "run_plan", note)
    yield seen
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A real interpreter, in an environment of its own."""
    environ = {"PATH": os.environ["PATH"], "HOME": ".", **variables}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, env=environ)


BAD_LINES: dict[str, tuple[Sequence[str], int, str]] = {
    "unknown-option": (["--optim.lr", "3"], 64, "--optim.lr"),
    "shortened-option": (["--conf", "x.yaml"], 64, "--conf"),
    "option-without-value": (["--config"], 64, "--config"),
    "unknown-device": (["--device", "gpu"], 64, "--device=gpu"),
    "no-number": (["--procs-per-node", "two"], 64, "--procs-per-node=two"),
    "zero-processes": (["--procs-per-node", "0"], 64, "--procs-per-node=0"),
    "half-of-several-machines": (["--nodes", "2"], 64, "--node-rank"),
    "node-rank-too-large": (["--nodes", "2", "--node-rank", "2", "--master-addr", "h"], 64, "--node-rank"),
    "misspelt-command": (["chek"], 64, "write `train check`"),
    "file-without-option": (["my.yaml"], 64, "--config FILE"),
    "data-alone": (["data"], 64, "train data check"),
    "no-data-command": (["data", "chek"], 64, "`train data chek` is no command"),
    "data-check-without-data": (["data", "check", "data.name=folder", "data.root=none"], 66, "data.root"),
    "json-without-a-report": (["check", "--json"], 64, "--json"),
    "later-command": (["bench"], 64, "not available in this version"),
    "command-second": (["optim.lr=1", "check"], 64, "`check` is not section.key=value"),
    "no-setting": (["check", "lr"], 64, "`lr` is not section.key=value"),
    "missing-file": (["--config", "no.yaml"], 66, "--config no.yaml"),
    "folder-as-file": (["--config", "."], 64, "--config ."),
    "remainder": (["--procs-per-node", "3", *CPU], 64, "train.global_batch_size=255 or 258"),
    "micro-remainder": ([*CPU, "train.micro_batch_size=100"], 64, "train.micro_batch_size=64 or 128"),
    "too-little-data": ([*CPU, "data.samples=100"], 64, "train.global_batch_size to at most 80"),
    "no-data": ([*CPU, "data.name=folder", "data.root=none"], 66, "data.root"),
    "no-classes": ([*CPU, "data.name=folder", "data.root=."], 66, "data.root"),
    "bad-value": (["train.precision=no"], 64, "train.precision"),
    "python-tag": (["run.name=!!python/name:os.system"], 77, "run.name"),
    "eval-of-nothing": (["eval"], 64, "`train eval` needs a checkpoint"),
    "eval-of-a-setting": (["eval", "data.root=x"], 64, "`train eval` needs a checkpoint"),
    "eval-of-what-is-not-there": (["eval", "runs/none"], 66, "runs/none is not a checkpoint"),
    "json-of-a-training": (["--json"], 64, "--json belongs to `train eval`"),
    "two-local-ranks": (["--local-rank=1"], 76, "--local-rank=1, LOCAL_RANK=0"),
}


@pytest.mark.parametrize(("argv", "code", "said"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_command_line_ends_with_its_code_a_fix_and_nothing_written(
    argv: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert front.run(argv, {"LOCAL_RANK": "0"} if "--local-rank=1" in argv else {}) == code
    shown = capsys.readouterr().err
    assert shown.startswith(f"ERROR[{code}]")
    assert said in shown
    assert "\n  fix: " in shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value"), [("ENTRYPOINT_DEVICE", "tpu"), ("ENTRYPOINT_PROCS_PER_NODE", "x"), ("RANK", "0")]
)
def test_a_bad_variable_is_named(variable: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run([], {variable: value}) in (64, 76)
    assert variable in capsys.readouterr().err


def test_each_rank_runs_the_worker_with_what_was_given(launched: dict[str, Any], tmp_path: Path) -> None:
    Path("my.yaml").write_text("run: {name: mine}\n")
    assert front.run(["--config", "my.yaml", "optim.lr=1", *CPU, "train.epochs=2"], {"A": "b"}) == 7
    assert launched["command"][1:] == ["-m", "train.worker", "--config", "my.yaml", "optim.lr=1", "train.epochs=2"]
    assert (launched["log_dir"], launched["foreign"]) == (Path("runs/mine/logs"), False)
    assert launched["environ"] == {"A": "b"}


def test_without_a_file_the_worker_gets_none(launched: dict[str, Any]) -> None:
    front.run(CPU, {})
    assert launched["command"] == [sys.executable, "-m", "train.worker"]


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
    front.run([*argv, "launch.procs_per_node=2", "launch.device=cpu"], environ)
    assert launched["plan"].spawn == spawn


def test_under_torchrun_one_worker_is_started_with_the_set_it_was_given(launched: dict[str, Any]) -> None:
    given = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "x"}
    front.run(CPU, given)
    plan = launched["plan"]
    assert (plan.launcher, plan.spawn, plan.world.rank, plan.world.world_size) == ("torchrun", 1, 1, 2)


@pytest.mark.parametrize("option", ["--local-rank=1", "--local_rank=1"])
def test_torch_distributed_launch_may_say_the_local_rank_as_an_argument(option: str, launched: dict[str, Any]) -> None:
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    front.run([option, *CPU], given)
    assert launched["plan"].world.local_rank == 1


def test_the_stand_in_folder_reaches_the_workers_and_is_said(launched: dict[str, Any], tmp_path: Path) -> None:
    Path("runs").write_text("in the way")
    front.run(CPU, {"TMPDIR": str(tmp_path)})
    folder = launched["log_dir"].parents[1]
    assert launched["command"][-1] == f"run.output_dir={folder}"
    assert folder.parent == tmp_path
    assert "docker run -v" in launched["plan"].warnings[-1]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint whose training was on two ranks of the CPU; without tensors."""
    config = schema.as_mapping(schema.load(None, ["launch.device=cpu", "launch.procs_per_node=2"]))
    state = json.dumps({"config": config}).encode()
    path = tmp_path / "run" / "checkpoints" / "step-00000007"
    path.mkdir(parents=True)
    (path / "state.json").write_bytes(state)
    listed = manifest.Manifest(format=1, step=7, torch="2.0", files={"state.json": manifest.entry(state)})
    (path / manifest.NAME).write_bytes(manifest.to_bytes(listed))
    return path


def test_eval_starts_the_ranks_of_the_checkpoints_configuration(launched: dict[str, Any], checkpoint: Path) -> None:
    environ = {"TMPDIR": str(checkpoint.parents[2])}
    assert front.run(["eval", "run", "--json", "eval.batch_size=9"], environ) == 7
    command, scratch = launched["command"], launched["log_dir"].parent
    assert command[1:] == [
        *("-m", "train.worker", "--evaluate", str(checkpoint), "--scratch", str(scratch), "--json", "eval.batch_size=9")
    ]
    assert launched["plan"].spawn == 2
    assert scratch.parent == checkpoint.parents[2]


@pytest.mark.parametrize(("code", "stays"), [(0, False), (75, False), (65, True)])
def test_eval_leaves_logs_only_where_it_failed(
    launched: dict[str, Any], checkpoint: Path, monkeypatch: pytest.MonkeyPatch, code: int, stays: bool
) -> None:
    monkeypatch.setattr(front, "run_plan", lambda *arguments, **options: code)
    assert front.run(["eval", str(checkpoint)], {"TMPDIR": "."}) == code
    assert bool(list(Path().glob("train-*"))) == stays


def test_eval_that_cannot_start_leaves_nothing(
    launched: dict[str, Any], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> int:
        raise Failure("no such host", fix="name another", code=ExitCode.PEER)

    monkeypatch.setattr(front, "run_plan", refuse)
    assert front.run(["eval", str(checkpoint)], {"TMPDIR": "."}) == 69
    assert list(Path().glob("train-*")) == []


def test_eval_says_what_was_passed_over(launched: dict[str, Any], checkpoint: Path) -> None:
    shutil.copytree(checkpoint, checkpoint.with_name("step-00000008"))  # its manifest belongs to step 7
    front.run(["eval", "run", "data.val_fraction=0.5"], {"TMPDIR": "."})
    assert launched["command"][4] == str(checkpoint)
    said = "\n".join(launched["plan"].warnings)
    assert "skipped a damaged checkpoint: step-00000008" in said
    assert "data.val_fraction differs" in said


def test_check_shows_the_effective_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert front.run(["check", *CPU, "--procs-per-node", "2", "optim.lr=0.3"], {}) == 0
    shown = capsys.readouterr().out
    assert "2 ranks on 1 node" in shown
    assert "256 = 64 micro x 2 accumulation x 2 ranks" in shown
    assert "31 per epoch, 155 in all; the last 64 samples of an epoch are left out" in shown
    assert "0.3 after 31 steps" in shown
    assert "runs/quickstart  (new)" in shown
    assert list(tmp_path.iterdir()) == []


def test_check_of_a_run_that_is_there_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/quickstart/logs").mkdir(parents=True)
    assert front.run(["check", *CPU], {}) == 0
    assert "runs/quickstart  (exists" in capsys.readouterr().out


def test_check_on_a_machine_without_gpus_says_so_and_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = front.make_plan

    def without_gpus(environ: Mapping[str, str], options: Any) -> Plan:
        if options.device == "cuda":
            raise Failure("no GPU can be used here", fix="use --nv", code=ExitCode.NODE)
        return real(environ, options)

    monkeypatch.setattr(front, "make_plan", without_gpus)
    assert front.run(["check", "launch.device=cuda", "--procs-per-node", "4"], {}) == 0
    shown = capsys.readouterr().out
    assert "4 ranks on 1 node" in shown
    assert "note: here it would not start: no GPU can be used here. fix: use --nv" in shown


def test_where_prints_the_runs_folder_inside_any_job(capsys: pytest.CaptureFixture[str]) -> None:
    shell_of_two_nodes = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}
    assert front.run(["where", "run.output_dir=out", "run.name=mine"], shell_of_two_nodes) == 0
    assert capsys.readouterr().out == "out/mine\n"


def test_check_names_what_would_be_refused_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["check", *CPU], {"RANK": "0"}) == 76
    assert "LOCAL_RANK" in capsys.readouterr().err


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
    assert front.run([*command, *CPU], environ) == ExitCode.USAGE
    assert next(iter(environ)) in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def on_four_gpus(monkeypatch: pytest.MonkeyPatch, kind: str, *asked: str, **environ: str) -> Plan:
    """The plan for one node with four GPUs."""
    here = machine(gpus=fake_gpus(4))

    def plan_there(environ: Mapping[str, str], options: Options) -> Plan:
        return plan(detect(environ, options, here), options, here, environ)

    monkeypatch.setattr(front, "make_plan", plan_there)
    config = schema.load(None, [f"train.parallel={kind}"])
    arguments = front.build_parser().parse_args(list(asked))
    return front.planned(config, front.options(arguments, config, environ), environ)


@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 4), ("dp", 1), ("none", 1)])
def test_a_node_of_four_gpus_gets_the_processes_that_train_parallel_has(
    kind: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = on_four_gpus(monkeypatch, kind)
    assert found.spawn == ranks
    assert [w for w in found.warnings if "of 4 visible GPUs are used" in w] or kind != "none"
    assert not found.warnings or kind == "none"


def test_a_number_of_processes_that_was_asked_for_is_kept_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_four_gpus(monkeypatch, "none", "--procs-per-node", "2").spawn == 2
    monkeypatch.undo()
    assert front.run([*CPU, "--procs-per-node", "2", "train.parallel=none"], {}) == ExitCode.USAGE


def test_data_parallel_says_why_not_to_use_it(launched: dict[str, Any]) -> None:
    assert front.run([*CPU, "train.parallel=dp"], {}) == 7
    assert "slower than ddp" in launched["plan"].warnings[-1]


def test_a_bug_of_ours_shows_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(front.schema, "load", lambda *_: {}["x"])
    assert front.run(CPU, {}) == 70
    assert "Traceback" in capsys.readouterr().err


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front.schema, "load", raising(KeyboardInterrupt()))
    assert front.run(CPU, {}) == 130


@pytest.mark.parametrize(("signum", "code"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGUSR2", 75), ("SIGINT", 130)])
def test_a_signal_before_the_start_ends_cleanly_even_twice(signum: str, code: int) -> None:
    script = f"""
import os, signal, sys
from train import __main__ as front
def load(*_):
    os.kill(os.getpid(), signal.{signum})
def show(failure):
    os.kill(os.getpid(), signal.{signum})
    return "stopped"
front.schema.load = load
front.Failure.__str__ = show
sys.argv = ["train"]
sys.exit(front.main())
"""
    assert python("-c", script).returncode == code


@pytest.mark.parametrize(("signum", "code"), [("SIGTERM", 75), ("SIGINT", 0)])
def test_of_signals_that_the_caller_ignores_only_ctrl_c_stays_ignored(signum: str, code: int) -> None:
    script = f"""
import os, signal, sys
signal.signal(signal.{signum}, signal.SIG_IGN)
from train import __main__ as front
front.COMMANDS["check"] = lambda *_: os.kill(os.getpid(), signal.{signum}) or 0
sys.argv = ["train", "check"]
sys.exit(front.main())
"""
    assert python("-c", script).returncode == code


def test_torch_is_not_imported() -> None:
    script = "import sys; from train import __main__; __main__.run(['check'], {}); print('torch' in sys.modules)"
    assert python("-c", script, CUDA_VISIBLE_DEVICES="").stdout.splitlines()[-1] == "False"


def test_numpy_is_not_imported() -> None:
    script = "import sys; from train import __main__; print('numpy' in sys.modules)"
    assert python("-c", script).stdout == "False\n"


def test_the_version_names_what_decides_results() -> None:
    shown = python("-m", "train", "--version").stdout
    assert "train-image " in shown
    assert "torch " in shown


def test_help_has_examples() -> None:
    shown = python("-m", "train", "-h")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "train check --config cfg.yaml" in shown.stdout


def test_a_reader_that_goes_away_is_no_failure() -> None:
    """As in `train check | head -1`, with a pipe whose reader is gone before the first byte."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "train", "check", *CPU]
    with os.fdopen(write_end, "wb") as nobody:
        done = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_options_may_stand_between_settings(launched: dict[str, Any]) -> None:
    assert front.run(["optim.lr=1", *CPU, "train.epochs=1", "--procs-per-node", "2", "run.seed=1"], {}) == 7
    assert launched["command"][3:] == ["optim.lr=1", "train.epochs=1", "run.seed=1"]


def test_data_check_tells_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["data", "check", "data.samples=20", "data.image_size=8"], {}) == 0
    shown = capsys.readouterr()
    assert "leakage        none" in shown.out
    assert shown.err == ""


def test_data_check_ends_with_65_for_bad_data_also_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ant=2, bee=2)
    write_classes(tmp_path / "val", ant=1, bee=1)
    (tmp_path / "train/ant/000.png").write_bytes(b"no image")
    assert front.run(["data", "check", "--json", "data.name=folder", f"data.root={tmp_path}"], {}) == 65
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ok"] is False
    assert "\n  fix: " in shown.err
