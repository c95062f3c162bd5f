"""train.compile: what is compiled, when, and what is said of it.

Mostly with torch's tracing alone ("eager" makes no code): C++ takes a minute to compile. The last test makes some.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import after, built
from processes import python
from torch import nn

from entrypoint import ExitCode, Failure, Heartbeat
from entrypoint.heartbeat import Phase, Point
from train import compilation, worker
from train.config import load
from train.config.schema import TrainConfig
from train.evaluation import validator
from train.logging.metrics_logger import METRICS_FILE, read_events
from train.run.stop import StopSignals
from train.tasks.base import StepLoss
from train.trainer import Trainer

# Three evaluations, whose last batch is smaller: 16 validation samples in batches of 7.
COMPILED = ("train.compile=default", "eval.batch_size=7", "train.epochs=3")


@pytest.fixture(autouse=True)
def _traced_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    yield
    torch._dynamo.reset()


def weights(folder: Path, *settings: str) -> list[float]:
    with built(folder, *settings) as trainer:
        trainer.fit()
        return torch.cat([tensor.flatten() for tensor in trainer.state.network.state_dict().values()]).tolist()


def recompiled(folder: Path) -> list[int]:
    return [event["step"] for event in read_events(folder / METRICS_FILE) if event["event"] == "compiled"]


def test_steps_and_evaluations_are_compiled_before_the_first_step_and_not_again(tmp_path: Path) -> None:
    with built(tmp_path, *COMPILED) as trainer:
        assert trainer.compiled is not None
        assert (trainer.compiled.graphs, trainer.compiled.breaks) == (2, 0)
        before = compilation.count_compiled()["graphs"]
        trainer.fit()
    assert compilation.count_compiled()["graphs"] == before
    assert recompiled(tmp_path) == []


def test_with_autocast_too(tmp_path: Path) -> None:
    with built(tmp_path, *COMPILED, "train.precision=bf16") as trainer:
        trainer.fit()
    assert trainer.compiled is not None
    assert trainer.compiled.graphs == 2
    assert recompiled(tmp_path) == []


def test_without_validation_samples_the_steps_alone_are_compiled(tmp_path: Path) -> None:
    with built(tmp_path, *COMPILED, "data.val_fraction=0") as trainer:
        assert trainer.compiled is not None
        assert trainer.compiled.graphs == 1


def test_a_compiled_network_keeps_names_numbers_and_its_weights_before_the_first_step(tmp_path: Path) -> None:
    assert weights(tmp_path / "compiled", *COMPILED) == weights(tmp_path / "eager", *COMPILED, "train.compile=false")


def test_what_is_compiled_after_the_first_step_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another_size(trainer: Trainer) -> None:
        trainer.state.network(torch.zeros(3, 3, 8, 8))

    after(3, another_size, monkeypatch)
    with built(tmp_path, *COMPILED) as trainer:
        trainer.fit()
    assert recompiled(tmp_path) == [4]


def example_loss(model: nn.Module) -> StepLoss:
    return StepLoss(loss=model(torch.zeros(2, 3)).sum(), samples=2, values={})


def prepared(network: nn.Module, folder: Path) -> compilation.Compiled:
    with built(folder) as trainer:
        parallel = trainer.parallel
        parallel.model, parallel.network, parallel.example_loss = network, network, example_loss
        return compilation.compile_model(TrainConfig(compile="default"), parallel, None, Heartbeat(), print)


class Beats(Heartbeat):
    """Counts its beats."""

    def __init__(self) -> None:
        self.count = 0

    def beat(self, phase: Phase, point: Point = "", *, step: int | None = None) -> None:
        self.count += 1


@pytest.mark.parametrize(("seconds_per_check", "beats"), [(2.0, True), (0.1, False)], ids=["busy", "hanging"])
def test_a_compiler_gives_a_sign_of_life_while_it_uses_the_cpu(
    seconds_per_check: float, beats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "BUSY_CHECK_S", 0.001)
    monkeypatch.setattr(compilation, "REPORT_EVERY_S", 0.0)
    heartbeat, cpu_seconds, said_three = Beats(), itertools.count(0.0, seconds_per_check), threading.Barrier(2)
    messages: list[str] = []

    def say(text: str) -> None:
        messages.append(text)
        if len(messages) == 3:
            said_three.wait(60)

    with compilation.signs_of_life(heartbeat, say, lambda: next(cpu_seconds)):
        said_three.wait(60)
    assert (heartbeat.count > 0) is beats
    assert "still compiling" in messages[0]


class Marked(nn.Linear):
    """What dynamo may not look into."""

    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def test_a_model_of_which_nothing_is_compiled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no part of the model was compiled") as caught:
        prepared(Marked(3, 2), tmp_path)
    assert caught.value.code == ExitCode.USAGE


def test_what_the_compiler_cannot_do_is_said_in_our_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(compilation, "BACKEND", broken)
    with pytest.raises(Failure, match="cannot compile this model") as caught:
        prepared(nn.Linear(3, 2), tmp_path)
    assert "no C++ compiler" in str(caught.value)
    assert "train.compile=false" in caught.value.fix


GCC = (
    "CppCompileError: C++ compile error\n\nCommand:\ng++ /tmp/tmp6o/header.hpp -D CPU_CAPABILITY_AVX2 -O3\n\nOutput:\n"
)
# What g++ 12, torch 2.15 and Linux wrote, each provoked once.
CAUSES = {
    "full-temporary-folder": (
        GCC + "<built-in>: fatal error: when writing output to /tmp/tmp6o/header.i: No space left on device",
        ExitCode.IO,
        "TMPDIR",
    ),
    "full-cache": ("OSError: [Errno 28] No space left on device", ExitCode.IO, "TORCHINDUCTOR_CACHE_DIR"),
    "quota": (GCC + "/usr/bin/ld: final link failed: Disk quota exceeded", ExitCode.IO, "TMPDIR"),
    "read-only": (GCC + "Cannot create temporary file in /tmp/: Read-only file system", ExitCode.OUTPUT, "TMPDIR"),
    "not-ours": (GCC + "Cannot create temporary file in /tmp/: Permission denied", ExitCode.OUTPUT, "TMPDIR"),
    "noexec": (
        "OSError: /tmp/y/cq.main.so: failed to map segment from shared object. The most common reason",
        ExitCode.OUTPUT,
        "TORCHINDUCTOR_CACHE_DIR",
    ),
    "killed": (GCC + "g++: fatal error: Killed signal terminated program cc1plus", ExitCode.RESOURCE, "--mem"),
    "memory": (GCC + "cc1plus: out of memory allocating 65536 bytes", ExitCode.RESOURCE, "ulimit -v"),
    "file-size": (
        GCC + "g++: internal compiler error: File size limit exceeded signal terminated program cc1plus",
        ExitCode.RESOURCE,
        "ulimit -f",
    ),
    "no-compiler": (
        "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')",
        ExitCode.USAGE,
        "CXX",
    ),
}


@pytest.mark.parametrize(("text", "code", "fix"), CAUSES.values(), ids=CAUSES)
def test_what_stopped_the_compiler_is_no_fault_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: ExitCode, fix: str
) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError(text)

    monkeypatch.setattr(compilation, "BACKEND", broken)
    with pytest.raises(Failure) as caught:
        prepared(nn.Linear(3, 2), tmp_path)
    assert (caught.value.code, "this model" in caught.value.what) == (code, False)
    assert fix in caught.value.fix
    assert "g++ /tmp" not in str(caught.value.found)


def test_of_a_compilers_errors_the_first_is_shown_and_not_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError(GCC + "header.hpp:1:10: fatal error: Python.h: No such file or directory\n1 | #include")

    monkeypatch.setattr(compilation, "BACKEND", broken)
    with pytest.raises(Failure, match="cannot compile this model") as caught:
        prepared(nn.Linear(3, 2), tmp_path)
    assert caught.value.found == "header.hpp:1:10: fatal error: Python.h: No such file or directory"


@pytest.mark.parametrize("words", ["out of memory", "uncorrectable ECC error encountered"])
def test_what_cuda_says_while_torch_compiles_is_no_fault_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def fail(graph: Any, inputs: Any) -> Any:
        raise torch.AcceleratorError(f"CUDA error: {words}")

    monkeypatch.setattr(compilation, "BACKEND", fail)
    with pytest.raises(torch.AcceleratorError, match=words):
        prepared(nn.Linear(3, 2), tmp_path)


def test_a_rehearsed_evaluation_that_does_not_fit_the_gpu_names_its_own_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")  # no GPU said it here

    monkeypatch.setattr(validator, "_eval_mode", full)
    with pytest.raises(Failure, match="in the evaluation") as caught, built(tmp_path, *COMPILED, "eval.batch_size=8"):
        pass
    assert "eval.batch_size=2 " in caught.value.fix


@pytest.mark.parametrize("wrapped", [False, True], ids=["raised-by-the-signal", "wrapped-once-more"])
def test_a_signal_while_torch_compiles_is_a_stop_and_no_fault_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    signals = StopSignals()
    signals.exit_on_signal(lambda failure: None)

    def interrupted(graph: Any, inputs: Any) -> Any:
        try:
            signals.handle(signal.SIGINT)
        except Failure:
            if not wrapped:
                raise
            raise RuntimeError("gone")  # noqa: B904 (so that its context alone tells)

    monkeypatch.setattr(compilation, "BACKEND", interrupted)
    with pytest.raises(Failure, match="stopped by SIGINT before the first step") as caught:
        prepared(nn.Linear(3, 2), tmp_path)
    assert caught.value.code == ExitCode.STOPPED


@pytest.mark.parametrize(("mode", "kept"), [("default", "/there"), ("false", None)])
def test_who_says_where_code_is_kept_is_heard(mode: str, kept: str | None, tmp_path: Path) -> None:
    config = load.load_config(None, [f"train.compile={mode}"])
    variables = {worker.COMPILED_CODE_VARIABLE: "/there"} if kept else {}
    worker.keep_compiled_code(variables, config)
    assert variables.get(worker.COMPILED_CODE_VARIABLE) == kept
    if kept:
        own = {"XDG_CACHE_HOME": str(tmp_path)}
        worker.keep_compiled_code(own, config)
        assert own[worker.COMPILED_CODE_VARIABLE] == str(tmp_path / "train-image/compiled")


@pytest.mark.slow
def test_compiled_code_is_kept_and_found_by_the_next_start(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("machine: the command g++ is not there")
    tiny = ("model.args.width=1", "model.args.blocks=0", "model.args.norm=none", "data.samples=40", "data.image_size=8")
    short = ("train.max_steps=2", "train.global_batch_size=8", "data.val_fraction=0", "train.compile=default")
    results = []
    for name in ("cold", "warm"):
        # Headers that are compiled ahead pay off with more kernels than two. The place: torch has set one, here.
        quick = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0", "TORCHINDUCTOR_CACHE_DIR": ""}
        environ = {"XDG_CACHE_HOME": str(tmp_path / "caches"), **quick}
        run = ("-m", "train", "--device", "cpu", *tiny, *short, f"run.name={name}")
        done = python(*run, cwd=tmp_path, environ=environ)
        assert done.returncode == 0, done.stderr
        results.append(json.loads((tmp_path / f"runs/{name}/run.json").read_text())["training"]["compiled"])
    assert [code["graphs"] for code in results] == [1, 1]
    assert [code["kept"] for code in results] == [0, results[0]["pieces"]]
    assert results[1]["place"] == str(tmp_path / "caches/train-image/compiled")
