"""What `train check` and `train where` say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from entrypoint import ExitCode, Failure, Plan
from train import __main__ as front
from train.cli import launch

CPU = ("--device", "cpu")


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
