"""Command lines and settings that cannot be meant: refused before anything is started or written."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bad.case import Case, standing_in, through_entrypoint, through_train
from machines import fake_gpus

from entrypoint import engines
from train.run import folder

check = partial(Case, door=through_train)
entry = partial(Case, door=through_entrypoint)
# id -> (words after `train`, exit code, words of the message, words of the fix).
Row = tuple[str, int, tuple[str, ...], str]
LINES: dict[str, Row] = {
    "unknown-option": ("check --epochs 3", 64, ("command line", "--epochs"), "write train.epochs=3"),
    "half-an-option": ("check --conf x", 64, ("command line", "--conf"), "write --config"),
    "option-without-value": ("check --config", 64, ("--config", "expected one argument"), "train check --help"),
    "unknown-command": ("chek", 64, ("`chek` is neither a command",), "train check`"),
    "a-file-without-config": ("cfg.yaml", 64, ("`cfg.yaml` is neither a command",), "--config cfg.yaml"),
    "a-shell-in-a-word": ("$(touch${IFS}executed)", 64, ("`$(touch${IFS}executed)` is neither",), "--config FILE"),
    "json-for-check": ("check --json", 64, ("--json belongs to `train eval`",), "leave --json out"),
    "all-for-check": ("check --all", 64, ("--all belongs to `train eval`",), "leave --all out"),
    "eval-of-a-time": ("eval run --time-limit 9", 64, ("command line", "--time-limit 9"), "train eval --help"),
    "json-for-fetch": (
        "data fetch --json",
        64,
        ("--json belongs to `train eval` and `train data check`",),
        "leave --json out",
    ),
    "bench-alone": ("bench", 64, ("`train bench` needs a name",), "use one of: scaling"),
    "unknown-bench": ("bench steps", 64, ("`train bench steps` is no bench",), "use one of: scaling"),
    "bench-after-options": ("--device cpu bench comm", 64, ("`bench` comes after options",), "train bench"),
    "bench-with-peers": ("bench step", 64, ("compares with other programs",), "make bench"),
    "data-alone": ("data", 64, ("`train data` needs a command",), "train data check"),
    "unknown-data-command": ("data clean", 64, ("`train data clean` is no command",), "train data fetch"),
    "eval-alone": ("eval", 64, ("`train eval` needs a checkpoint",), "RUN/checkpoints/step-N"),
    "eval-of-settings": ("eval data.root=x", 64, ("needs a checkpoint", "data.root=x"), "RUN/checkpoints/step-N"),
    "override-without-key": ("check optim.lr=1 lr", 64, ("`lr` is not section.key=value",), "optim.lr=VALUE"),
    "a-file-for-check": ("check my.yml", 64, ("`my.yml` is not section",), "write --config my.yml"),
    "override-with-an-empty-part": ("check optim..lr=1", 64, ("`optim..lr=1`",), "write optim.lr=1"),
    "override-of-nothing": ("check optim.lr=1 =1", 64, ("`=1` is not",), "optim.lr=0.1"),
    "override-below-a-value": (
        "check optim=3 optim.lr=1",
        64,
        ("`optim.lr=1`", "inside optim", "optim: 3"),
        "remove one",
    ),
    "override-twice": (
        "check optim.lr=1 optim.lr=2",
        64,
        ("optim.lr is written twice on the command line",),
        "remove `optim.lr=1` or `optim.lr=2`",
    ),
    "override-with-a-tag": (
        "check model.args=!!python/name:os.system",
        77,
        ("python/name", "nothing was run"),
        "plain",
    ),
    "override-with-a-bomb": (
        "check model.args=[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]",
        64,
        ("levels",),
        "20 levels",
    ),
    "override-unclosed": ("check model.args={width:", 64, ("`model.args={width:`", "not valid YAML"), "close brackets"),
    "override-no-tracker": ("check log.trackers=[dvclive]", 64, ("no other is tried here",), "leave it out"),
    "no-such-schedule-arg": (
        "check optim.schedule_args.gamma=1",
        64,
        ("optim.schedule_args do not fit cosine", "gamma", "end"),
        "correct",
    ),
    "schedule-arg-for-constant": (
        "check optim.schedule=constant optim.schedule_args.end=0",
        64,
        ("unknown: end", "nothing"),
        "leave it out",
    ),
    "schedule-arg-range": ("check optim.schedule_args.end=1.5", 64, ("end: 1.5", "less than 1"), "correct"),
    "schedule-arg-text": ("check optim.schedule_args.end=low", 64, ("end: low",), "correct"),
    "schedule-epochs-negative": (
        "check optim.schedule=step optim.schedule_args.at_epochs=[-1]",
        64,
        ("at_epochs: [-1]", "a list of epochs"),
        "correct",
    ),
    "schedule-epochs-huge": (
        "check optim.schedule=step optim.schedule_args.at_epochs=[1e308]",
        64,
        ("at_epochs: [1e+308]",),
        "correct",
    ),
    "schedule-args-no-map": (
        "check optim.schedule_args=5",
        64,
        ("optim.schedule_args: 5", "a mapping"),
        "default is {}",
    ),
    "optim-arg-unknown": (
        "check optim.args.beta=0.9",
        64,
        ("optim.args do not fit sgd", "beta", "nesterov"),
        "correct",
    ),
    "optim-arg-of-ours": ("check optim.args.lr=0.9", 64, ("optim.args do not fit sgd", "lr"), "correct"),
    "model-arg-unknown": (
        "check model.args.depth=4",
        64,
        ("model.args do not fit small_cnn", "depth", "width"),
        "correct",
    ),
    "batch-remainder": (
        "check train.global_batch_size=100 train.micro_batch_size=32",
        64,
        ("100 = 3 x 32 + 4",),
        "96 or 128",
    ),
    "batch-among-ranks": ("check --procs-per-node 3 train.global_batch_size=256", 64, ("among 3 ranks",), "255 or 258"),
    "batch-of-less-than-ranks": ("check --procs-per-node 8 train.global_batch_size=4", 64, ("among 8 ranks",), "=8"),
    "batch-larger-than-data": (
        "check data.samples=100",
        64,
        ("256: an epoch would have no step", "80 training"),
        "at most 80",
    ),
    "fewer-samples-than-ranks": (
        "check --procs-per-node 8 data.samples=5",
        64,
        ("4 training samples",),
        "at most 4 ranks",
    ),
    "dp-compiled": (
        "check train.parallel=dp train.compile=default",
        64,
        ("train.compile does not go with train.parallel dp",),
        "train.compile=false",
    ),
    "dp-with-several": (
        "check --procs-per-node 2 train.parallel=dp",
        64,
        ("train.parallel dp is one process", "2 ranks"),
        "ddp",
    ),
    "two-ways-to-validate": (
        "check data.name=npz data.fold=1/5 data.val_fraction=0.1",
        64,
        ("data.fold and data.val_fraction both choose", "1/5"),
        "leave one of them out",
    ),
    "fold-of-nothing": (
        "check data.name=npz data.fold=6/5",
        64,
        ("data.fold", "NUMBER/PARTS, such as 2/5"),
        "the default is null",
    ),
    "fold-of-drawn-images": ("check data.fold=1/5", 64, ("data.fold does not go with data.name: synthetic",), "folder"),
    "all-for-the-test": (
        "check data.val_fraction=0.5 data.test_fraction=0.5",
        64,
        ("leave nothing to train on", "0.5 + 0.5"),
        "data.test_fraction=0.2",
    ),
    "early-stop-at-once": ("check eval.early_stop=0", 64, ("eval.early_stop", "1 or more"), "the default is null"),
    "fp16-on-a-cpu-that-check-sees": (
        "check --device cpu train.precision=fp16",
        64,
        ("train.precision fp16 is not possible on this device", "CPU"),
        "train.precision to auto",
    ),
    "balanced-twice": (
        "check data.sampling=balanced optim.class_weights=balanced",
        64,
        ("would balance the classes twice",),
        "leave one of them out",
    ),
    "repeats-that-do-not-divide": (
        "check data.repeats=3",
        64,
        ("does not hold its images data.repeats times", "256 = 85.3333 images x 3"),
        "train.global_batch_size=255 or 258",
    ),
    "repeats-of-one-image": (
        "check data.repeats=8 train.global_batch_size=8",
        64,
        ("8 = 1 images x 8",),
        "train.global_batch_size=16",
    ),
    "another-size-for-drawn-images": (
        "check eval.image_size=64",
        64,
        ("eval.image_size reads image files in another size, and these samples are stored in one size",),
        "data.name to folder or table",
    ),
    "growing-without-an-end": (
        "check data.progressive_size.start=16",
        64,
        ("data.progressive_size", "{start: PIXELS, epochs: NUMBER}"),
        "the default is {}",
    ),
    "two-splits-at-once": ("eval run --all --split test", 64, ("not allowed with",), "train eval --help"),
    "show-as-jpeg": ("data show --output a.jpg", 64, ("takes the name of a .png file",), "--output a.jpg.png"),
    "show-into-nothing": ("data show --output none/a.png", 73, ("none is no folder",), "mkdir -p none"),
    "check-with-a-picture": ("data check --output a.png", 64, ("belongs to `train data show`",), "leave --output out"),
    "target-in-percent": ("check eval.target=95", 64, ("eval.target 95", "up to 1"), "eval.target=0.95"),
    "target-zero": ("check eval.target=0", 64, ("eval.target 0 is no value",), "set null"),
    "target-negative-loss": (
        "check eval.metric=loss eval.target=-1",
        64,
        ("eval.target -1", "more than 0"),
        "set null",
    ),
    "group-without-files": ("check data.group=x", 64, ("data.group does not go with data.name: synthetic",), "folder"),
    "group-no-regex": ("check data.name=folder data.group=(a", 64, ("data.group", "(a"), "correct it"),
    "frames-of-files": (
        "check data.name=folder data.frames=4",
        64,
        ("data.frames does not go with data.name: folder",),
        "synthetic",
    ),
    "imbalance-of-files": (
        "check data.name=npz data.imbalance=9",
        64,
        ("data.imbalance does not go",),
        "data.imbalance out",
    ),
    "classes-of-cifar": (
        "check data.name=cifar10 data.classes=7",
        64,
        ("data.classes does not go", "7"),
        "leave data.classes",
    ),
    "imbalance-of-few": (
        "check data.samples=8 data.imbalance=9",
        64,
        ("6 samples in one split, 10 classes",),
        "data.samples higher",
    ),
    "clips-for-images": (
        "check data.frames=4",
        64,
        ("model.name small_cnn takes images", "clips"),
        "model.name to cnn3d",
    ),
    "images-for-clips": ("check model.name=cnn3d", 64, ("model.name cnn3d takes clips",), "model.name to small_cnn"),
    "download-of-folder": (
        "check data.name=folder data.download=true",
        64,
        ("folder is not a published",),
        "data.download",
    ),
    "fetch-of-synthetic": ("data fetch", 64, ("synthetic is not a published data set",), "set data.name"),
    "no-cifar": (
        "check data.name=cifar10 data.root=nowhere",
        66,
        ("/nowhere/cifar-10-batches-py",),
        "train data fetch",
    ),
    "no-mnist-in-a-folder-of-spaces": (
        "check data.name=mnist data.root={spaces}",
        66,
        ("its files are not in data.root",),
        "'data.root=a b'",
    ),
    "no-weights": (
        "check model.weights=x.safetensors",
        66,
        ("nothing at model.weights x.safetensors",),
        "correct model.weights",
    ),
    "weights-below-a-file": ("check model.weights=/dev/null/x.pt", 66, ("nothing at model.weights",), "correct"),
    "two-local-ranks": (
        "check --local-rank 1",
        76,
        ("two local ranks", "--local-rank=1, LOCAL_RANK=0"),
        "remove LOCAL_RANK",
    ),
    "device-gpu": ("check --device gpu", 64, ("--device=gpu", "auto, cpu or cuda"), "set --device to cuda,"),
    "procs-0": ("check --procs-per-node 0", 64, ("--procs-per-node=0", "from 1 to 1024"), "--procs-per-node"),
    "procs-million": ("check --procs-per-node 1000000", 64, ("--procs-per-node=1000000", "1024"), "--procs-per-node"),
    "nodes-half": ("check --nodes 2 --node-rank 0", 64, ("--master-addr missing",), "--nodes N --node-rank K"),
    "node-rank-beyond": ("check --nodes 2 --node-rank 2 --master-addr a", 64, ("--node-rank=2",), "below --nodes (2)"),
    "master-port-0": (
        "check --nodes 2 --node-rank 0 --master-addr a --master-port 0",
        64,
        ("--master-port=0", "1 to 65535"),
        "--master-port",
    ),
    "nodes-of-5000-digits": (
        f"check --nodes {'9' * 5000} --node-rank 0 --master-addr a",
        64,
        ("--nodes=999",),
        "65536",
    ),
    "eval-of-nothing": ("eval nowhere", 66, ("nowhere is not a checkpoint", "does not exist"), "train where"),
    "weights-are-a-pipe": ("check data.name=npz data.root=/dev/null", 66, ("data.root", "/dev/null"), "set data.root"),
}
ENVIRONS: dict[str, dict[str, str]] = {"two-local-ranks": {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}}
# Variables of `accelerate launch` that ask for another training: id -> (variable, value, words, fix).
ACCELERATE = {
    "precision": ("MIXED_PRECISION", "bf16", ("computes in fp32", "=bf16"), "train.precision=bf16"),
    "fp8": ("MIXED_PRECISION", "fp8", ("=fp8",), "leave precision to the config"),
    "accumulation": ("GRADIENT_ACCUMULATION_STEPS", "7", ("accumulates 4", "=7"), "train.micro_batch_size"),
    "accumulation-huge": ("GRADIENT_ACCUMULATION_STEPS", "9" * 5000, ("accumulates 4",), "train.micro_batch_size"),
    "deepspeed": ("USE_DEEPSPEED", "true", ("trains with DDP",), "unset ACCELERATE_USE_DEEPSPEED"),
    "fsdp": ("USE_FSDP", "1", ("trains with DDP",), "train.parallel"),
    "dynamo": ("DYNAMO_BACKEND", "INDUCTOR", ("train.compile decides",), "unset ACCELERATE_DYNAMO_BACKEND"),
}


def taken(folder: Path) -> dict[str, Any]:
    """A port that another process holds, for as long as the answer lives."""
    listener = socket.create_server(("127.0.0.1", 0))
    return {"port": listener.getsockname()[1], "held": listener}


def file_named(name: str) -> Any:
    return lambda folder: (folder / name).write_text("")


def apptainer(root: object = "/") -> str:
    return "apptainer"


UNSEEN: Mapping[str, tuple[tuple[str, ...], int, str]] = {
    "config": (("check", "--config", "/nowhere/cfg.yaml"), 66, "--config /nowhere/cfg.yaml"),
    "data": (("check", "data.name=folder", "data.root=/nowhere/data"), 66, "data.root /nowhere/data"),
    "weights": (("check", "model.weights=/nowhere/x.pt"), 66, "model.weights /nowhere/x.pt"),
}

CASES = [
    *(
        check(
            id=f"line-{name}",
            line=tuple("data.root=a b" if word == "data.root={spaces}" else word for word in words.split(" ")),
            environ=ENVIRONS.get(name, {}),
            code=code,
            says=says,
            fix=fix,
        )
        for name, (words, code, says, fix) in LINES.items()
    ),
    *(
        check(
            id=f"accelerate-{name}",
            line=("check", "train.micro_batch_size=64"),
            environ={f"ACCELERATE_{variable}": value},
            code=64,
            says=(f"ACCELERATE_{variable} and the config contradict", *says),
            fix=fix,
        )
        for name, (variable, value, says, fix) in ACCELERATE.items()
    ),
    check(
        id="bench-batch-cannot-grow",
        line=("bench", "scaling", "--processes", "2,3"),
        config="train: {global_batch_size: 9}\n",
        code=64,
        says=("the global batch cannot grow from 2 processes to 3", "train.global_batch_size: 9"),
        fix="train.global_batch_size=8 or 10",
    ),
    check(
        id="accelerate-cpu",
        environ={"ACCELERATE_USE_CPU": "true"},
        machine={"gpus": fake_gpus(1)},
        code=64,
        says=("ACCELERATE_USE_CPU", "computes on GPUs"),
        fix="--device cpu",
    ),
    *(
        check(
            id=f"unseen-{name}",
            line=line,
            door=standing_in(through_train, engines, "detect", apptainer),
            code=code,
            says=(message, "not visible inside the container"),
            fix="--bind",
        )
        for name, (line, code, message) in UNSEEN.items()
    ),
    check(
        id="output-below-a-file",
        line=("run.output_dir=file/runs",),
        prepare=file_named("file"),
        code=73,
        says=("cannot write file/runs", "Not a directory"),
        fix="run.output_dir",
    ),
    check(
        id="output-is-a-link-to-nothing",
        line=("run.output_dir=file",),
        prepare=lambda folder: (folder / "file").symlink_to(folder / "purged"),
        code=73,
        says=("file is a symbolic link to what is not there",),
        fix="mkdir -p",
    ),
    check(
        id="output-is-a-file",
        line=("run.output_dir=file",),
        prepare=file_named("file"),
        code=73,
        says=("cannot write file",),
        fix="run.output_dir",
    ),
    check(
        id="output-name-too-long",
        line=(f"run.output_dir={'x' * 300}",),
        code=73,
        says=("cannot read", "File name too long"),
        fix="shorter",
    ),
    check(
        id="no-temporary-folder",
        line=("data", "check", "data.name=folder"),
        door=through_train,
        code=66,
        says=("data.root cannot be read", "data"),
        fix="set data.root",
    ),
    entry(id="run-nothing", line=("run",), code=64, says=("no command to run",), fix="python script.py"),
    entry(id="run-only-dashes", line=("run", "--"), code=64, says=("no command to run",), fix="python script.py"),
    entry(id="entrypoint-alone", line=(), code=64, says=("required",), fix="entrypoint --help"),
    entry(id="entrypoint-unknown", line=("doctr",), code=64, says=("doctr",), fix="entrypoint doctor"),
    entry(id="show-unknown-option", line=("show", "--gpus"), code=64, says=("--gpus",), fix="entrypoint show --help"),
    entry(
        id="run-no-such-program",
        line=("run", "--device", "cpu", "no-such-program", "$(touch executed)"),
        code=66,
        says=("cannot be started", "no-such-program"),
        fix="in PATH",
        writes=("logs", "logs/*"),
    ),
    entry(
        id="run-a-folder",
        line=("run", "--device", "cpu", "/"),
        code=66,
        says=("cannot be started", "found: /"),
        fix="in PATH",
        writes=("logs", "logs/*"),
    ),
    entry(
        id="run-logs-below-a-file",
        line=("run", "--device", "cpu", "--logs", "file/logs", "true"),
        prepare=file_named("file"),
        code=73,
        says=("the log of rank 0 cannot be written", "file/logs"),
        fix="--logs FOLDER",
    ),
    entry(
        id="run-port-taken",
        line=(
            *("run", "--device", "cpu", "--nodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1"),
            *("--master-port", "{port}", "true"),
        ),
        prepare=taken,
        code=69,
        says=("every port", "taken by another process", "127.0.0.1"),
        fix="set MASTER_PORT",
        row="29",
    ),
    entry(
        id="run-master-elsewhere",
        line=("run", "--device", "cpu", "--nodes", "1", "--node-rank", "0", "--master-addr", "192.0.2.1", "true"),
        code=69,
        says=("rank 0 cannot listen on 192.0.2.1",),
        fix="the host of rank 0",
    ),
    *(
        entry(
            id=f"run-master-{name}",
            line=("run", "--device", "cpu", "--nodes", "2", "--node-rank", "1", "--master-addr", host, "true"),
            code=69,
            says=(f"host name {host!r} does not resolve",),
            fix="IP address",
            row="30",
        )
        for name, host in {"with-a-space": "node 01", "with-an-empty-label": "a..b", "too-long": "x" * 70}.items()
    ),
    entry(
        id="run-killed",
        line=("run", "--device", "cpu", "sh", "-c", "kill -9 $$"),
        code=69,
        says=("rank 0 of 1 (node01, pid", "killed by SIGKILL"),
        fix="the same command again",
        writes=("logs", "logs/*"),
        row="1",
    ),
]
assert folder
