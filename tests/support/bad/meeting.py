"""Ranks that cannot be together, and what only a rank sees: its contract, its device, its numbers, other jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from attending import signed
from bad.case import Case, standing_in, through, through_rank, through_train
from torch import distributed as dist
from worlds import APART, FIRST, SECOND

from entrypoint import World
from train.config.schema import DataConfig
from train.data import registry, statistics
from train.distributed import rendezvous

RUN = ("runs", "runs/*")
rank = partial(Case, door=through_rank, writes=RUN, line=("run.output_dir=runs",))
check = partial(Case, door=through_train, code=64)
BITWISE = "train.reproducible=bitwise"


def waited(store: dist.Store, world: World = FIRST) -> list[dict[str, object]]:
    return rendezvous.wait_for_all_ranks(store, world, time.monotonic() + 0.2, lambda: None)


def report_all() -> None:
    store = signed((FIRST, ""))
    rendezvous.publish_refusal(store, rendezvous.duplicate_rank_failure(1, "a and b"))
    waited(store)


def disagreeing() -> None:
    who = [{"world_size": 2, "gpu": "", "host": "a"}, {"world_size": 3, "gpu": "", "host": "b"}]
    rendezvous.refuse_conflicting_ranks(who, FIRST)


def seeing(name: str, samples: int) -> None:
    """A rank that sees 32 samples, and another one."""
    fingerprint = statistics.data_fingerprint(registry.open_splits(DataConfig(samples=40, image_size=8)), "")
    other = "b", {"classes": (10, "x"), "training samples": (samples, "y"), "validation samples": (8, "z")}
    statistics.refuse_different_data(fingerprint, name, lambda one: [one, other])


# Several ranks at one store: id -> (what they do, code, words, fix).
TOGETHER: dict[str, tuple[Callable[[], object], int, tuple[str, ...], str]] = {
    "rank-twice": (
        lambda: signed((SECOND, ""), (SECOND, "")),
        76,
        ("two processes say that they are rank 1",),
        "--node-rank",
    ),
    "other-world": (
        lambda: signed((FIRST, ""), (replace(SECOND, world_size=4), "")),
        76,
        ("disagree about the number of ranks", "4 says rank 1"),
        "--procs-per-node",
    ),
    "other-world-later": (disagreeing, 76, ("disagree about the number of ranks",), "--procs-per-node"),
    "one-gpu": (
        lambda: rendezvous.refuse_conflicting_ranks(waited(signed((FIRST, "GPU-1"), (SECOND, "GPU-1"))), FIRST),
        76,
        ("ranks 0 and 1 use the same GPU", "GPU-1 on"),
        "--gpus-per-node",
    ),
    "missing": (lambda: waited(signed((APART, "")), APART), 69, ("missing 1", "1 of 2 ranks"), "launch.timeouts.start"),
    "refused-elsewhere": (report_all, 76, ("two processes say that they are rank 1", "a and b"), "--node-rank"),
    "other-files": (
        lambda: seeing("folder", 31),
        65,
        ("the ranks see different data", "on rank 1 (b)"),
        "all nodes the same files",
    ),
    "shuffled-alone": (lambda: seeing("mine:make", 32), 65, ("others, or in another order",), "os.listdir"),
    "no-master": (
        lambda: rendezvous._find_store(replace(APART, rank=1, master_addr="127.0.0.1"), [1], "x", time.monotonic()),
        69,
        ("rank 0's store was not reached", "nothing listens", "ports 1"),
        "output of rank 0",
    ),
}
FAULTS: dict[str, tuple[str, int, tuple[str, ...], str]] = {
    "unknown-site": (
        "everywhere:0:1:kill9",
        64,
        ("FAULT names no fault", "FAULT=everywhere", "site:rank:step"),
        "unset FAULT",
    ),
    "unknown-action": ("step:0:1:$(touch executed)", 64, ("FAULT=step:0:1:$(touch executed)",), "unset FAULT"),
    "half": ("step:0", 64, ("FAULT=step:0",), "unset FAULT"),
    "huge": (f"step:{'9' * 5000}:1:kill9", 64, ("FAULT names no fault",), "unset FAULT"),
    "loss": ("loss:*:1:nan", 90, ("training diverged", "mean loss nan"), "optim.lr"),
    "memory": ("fwd:*:1:oom", 71, ("out of host memory",), "train.micro_batch_size"),
}
CONTRACT: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "no-rank": ({"RANK": ""}, ("this worker was started without RANK",), "start it with `train`"),
    "no-master": ({"MASTER_ADDR": "", "MASTER_PORT": ""}, ("without MASTER_ADDR, MASTER_PORT",), "entrypoint run"),
    "port-is-text": ({"MASTER_PORT": "x"}, ("MASTER_PORT is not a whole number",), "unset MASTER_PORT"),
}
# id -> (settings, code, words, fix) for one rank on a CPU.
SETTINGS: dict[str, tuple[str, int, tuple[str, ...], str]] = {
    "fp16-on-a-cpu": (
        "train.precision=fp16",
        64,
        ("train.precision fp16 is not possible", "CPU"),
        "train.precision to auto",
    ),
    "target-without-samples": (
        "eval.target=0.9 data.val_fraction=0",
        64,
        ("eval.target needs validation",),
        "data.val_fraction",
    ),
    "top5-of-two": (
        "eval.metric=top5_accuracy",
        64,
        ("top5_accuracy needs more than 5 classes", "2 classes"),
        "accuracy",
    ),
    "optim-value": ("optim.args.nesterov=no", 64, ("nesterov is true or false, not 'no'",), "write false: YAML 1.2"),
    "optim-torch-refuses": (
        "optim.momentum=0 optim.args.nesterov=true",
        64,
        ("optim.args do not fit sgd", "Nesterov momentum"),
        "correct optim.args",
    ),
    "betas-of-two": (
        "optim.name=adam optim.args.betas=[2,2]",
        64,
        ("optim.args do not fit adam",),
        "correct",
    ),
    "optim-unknown": ("optim.args.beta=1", 64, ("optim.args do not fit sgd", "unknown: beta"), "correct optim.args"),
    "model-unknown": ("model.args.depth=4", 64, ("model.args do not fit small_cnn", "unknown: depth"), "correct"),
    "model-value": ("model.args.width=-1", 64, ("model.args do not fit small_cnn", "-1"), "correct model.args"),
    "model-text": ("model.args.norm=layers", 64, ("model.args do not fit small_cnn", "layers"), "correct model.args"),
    "model-too-deep": (
        "model.args.blocks=[1,1,1,1,1,1,1,1,1,1]",
        64,
        ("model.args do not fit small_cnn",),
        "model.args",
    ),
    "model-small-samples": (
        "model.name=alexnet model.args={}",
        64,
        ("alexnet does not take samples of",),
        "data.image_size",
    ),
}
WRONG_BITWISE: dict[str, tuple[str, int, tuple[str, ...], str]] = {
    "auto": ("", 64, ("train.micro_batch_size: auto",), "train.micro_batch_size=64"),
    "compiled": ("train.micro_batch_size=64 train.compile=default", 64, ("train.compile",), "train.compile=false"),
    "dp": ("train.micro_batch_size=64 train.parallel=dp", 64, ("train.parallel: dp",), "train.parallel=ddp"),
    "sync": (
        "train.micro_batch_size=64 train.sync_batchnorm=true",
        64,
        ("train.sync_batchnorm",),
        "train.sync_batchnorm=false",
    ),
    "exchange": (
        "train.micro_batch_size=64 train.gradient_exchange=bf16",
        64,
        ("train.gradient_exchange: bf16",),
        "train.gradient_exchange=fp32",
    ),
    "three": (
        "train.global_batch_size=192 train.micro_batch_size=64",
        64,
        ("= 3", "1, 2, 4, 8"),
        "train.micro_batch_size=",
    ),
    "three-ranks": ("--procs-per-node 3 train.micro_batch_size=64", 76, ("4 micro batches on 3 ranks", "1, 2, 4"), "2"),
}


def stopped(folder: Path) -> None:
    from train.cli import launch

    launch.raise_stopped(15, None)


def rung(folder: Path) -> None:
    from train.run.stop import StopSignals

    signals = StopSignals()
    signals.handle(15)
    signals.exit_on_signal(lambda failure: None)


def error_of_torch(error: Exception) -> Callable[[Path], object]:
    def call(folder: Path) -> None:
        from train.run import errors

        failure = errors.as_failure(error)
        if failure is not None:
            raise failure

    return call


def norm_of_more(folder: Path) -> None:
    """A BatchNorm with an activation inside, synchronized over two ranks."""
    from train.distributed import sync_batchnorm

    class NormAct(torch.nn.BatchNorm2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).relu()

    sync_batchnorm.convert_sync_batchnorm(torch.nn.Sequential(NormAct(3)), world_size=2)


UNDERSTOOD: dict[str, tuple[Exception, int, tuple[str, ...], str]] = {
    "gpu-memory": (torch.OutOfMemoryError("CUDA out of memory"), 71, ("out of GPU memory",), "train.micro_batch_size"),
    "broken-gpu": (
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
        78,
        ("GPU of ", "reports an error that it cannot correct", "ECC"),
        "srun --exclude=",
    ),
    "nccl-shm": (
        dist.DistBackendError("NCCL error in: x\nLast error:\nError while creating shared memory segment /dev/shm/x"),
        71,
        ("NCCL got no shared memory", "segment /dev/shm/x"),
        "--shm-size",
    ),
    "any-order": (
        RuntimeError("scatter_add_cuda_kernel does not have a deterministic implementation, but you set"),
        64,
        ("train.reproducible bitwise", "scatter_add_cuda_kernel"),
        "train.reproducible=fast",
    ),
    "lost-peer": (
        RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"),
        69,
        ("another rank is gone",),
        "resume",
    ),
    "dead-worker": (
        RuntimeError("DataLoader worker (pid 7) is killed by signal"),
        71,
        ("data worker",),
        "data.workers",
    ),
    "no-space": (OSError(28, "No space left on device", "x"), 74, ("cannot write x", "ENOSPC"), "space"),
}


def linked(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / "elsewhere").mkdir()
        (folder / "runs/run").mkdir(parents=True)
        (folder / "runs/run" / name).symlink_to("../../elsewhere")

    return make


def no_gpus() -> int:
    return 0


CASES = [
    *(
        Case(id=f"ranks-{name}", door=through(lambda folder, act=act: act()), code=code, says=says, fix=fix, row="32")
        for name, (act, code, says, fix) in TOGETHER.items()
    ),
    *(
        rank(id=f"fault-{name}", environ={"FAULT": text}, code=code, says=says, fix=fix)
        for name, (text, code, says, fix) in FAULTS.items()
    ),
    *(
        rank(id=f"contract-{name}", environ=environ, code=76, says=says, fix=fix, row="33")
        for name, (environ, says, fix) in CONTRACT.items()
    ),
    *(
        rank(id=f"rank-{name}", line=("run.output_dir=runs", *words.split()), code=code, says=says, fix=fix)
        for name, (words, code, says, fix) in SETTINGS.items()
    ),
    *(
        check(id=f"bitwise-{name}", line=("check", BITWISE, *words.split()), code=code, says=says, fix=fix)
        for name, (words, code, says, fix) in WRONG_BITWISE.items()
    ),
    *(
        Case(id=f"understood-{name}", door=through(error_of_torch(error)), code=code, says=says, fix=fix)
        for name, (error, code, says, fix) in UNDERSTOOD.items()
    ),
    Case(
        id="synchronized-norm-of-more",
        door=through(norm_of_more),
        code=64,
        says=("train.sync_batchnorm", "0 is a NormAct"),
        fix="train.sync_batchnorm=false",
    ),
    Case(
        id="stopped-early",
        door=through(stopped),
        code=75,
        says=("stopped by SIGTERM",),
        fix="same command again",
        row="62",
    ),
    Case(
        id="stopped-before-a-step",
        door=through(rung),
        code=75,
        says=("stopped by SIGTERM",),
        fix="same command",
        row="62",
    ),
    rank(
        id="rank-no-gpu",
        environ={"ENTRYPOINT_DEVICE": "cuda"},
        door=standing_in(through_rank, torch.cuda, "device_count", no_gpus),
        code=78,
        says=("CUDA finds no GPU for local rank 0", "0 usable GPUs"),
        fix="--nv",
        row="36",
    ),
    rank(
        id="rank-deadline",
        environ={"ENTRYPOINT_DEADLINE": "tomorrow"},
        code=64,
        says=("ENTRYPOINT_DEADLINE=tomorrow",),
        fix="--time-limit",
    ),
    rank(
        id="rank-deadline-huge",
        environ={"ENTRYPOINT_DEADLINE": "1e300"},
        code=64,
        says=("ENTRYPOINT_DEADLINE=1e300",),
        fix="--time-limit",
    ),
    *(
        check(
            id=f"time-limit-{name}",
            line=("--time-limit", text),
            says=("--time-limit",),
            fix="--time-limit",
        )
        for name, text in {"text": "soon", "zero": "0", "huge": "9" * 500, "year": "400-0"}.items()
    ),
    *(
        check(
            id=f"linked-{name}",
            line=("run.name=run",),
            prepare=linked(name),
            code=77,
            says=(f"runs/run/{name} is a symbolic link",),
            fix="remove the link",
            row="52",
        )
        for name in ("checkpoints", "errors", "logs", "metrics.jsonl", "run.json")
    ),
]
