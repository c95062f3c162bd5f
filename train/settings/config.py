"""The run's configuration as frozen values: every key a user may write, its type and its default (the quickstart)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Auto = Literal["auto"]
Augment = Literal["standard", "none", "mirror", "translate", "cutout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the run is called, and where it is kept: `output_dir/name`."""

    name: str = "quickstart"
    output_dir: str = "runs"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Longest silences in seconds, after which a run counts as hanging. start: up to the end of the first step."""

    start: float = 600.0
    step: float | Auto = "auto"
    save: float = 600.0
    evaluation: float = 600.0
    data: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Which processes to start, where the scheduler leaves it open."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    procs_per_node: int | Auto = "auto"
    max_restarts: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where the samples come from. image_size in pixels, val_fraction of the training images.

    imbalance: how many times rarer the rarest class is than the commonest (synthetic). frames: of a clip (synthetic).
    mirror: where data.download finds the published files, instead of their own address.
    """

    name: str = "synthetic"
    root: str = "data"
    download: bool = False
    mirror: str | None = None
    image_size: int = 32
    frames: int | None = None
    classes: int = 10
    samples: int = 10_000
    imbalance: float = 1.0
    val_fraction: float = 0.2
    group: str | None = None
    loader: Literal["auto", "memory", "workers"] = "auto"
    workers: int | Auto = "auto"
    cache: str | None = None
    augment: Augment | list[Augment] = "standard"
    max_bad_images: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Which network; `args` go to its constructor."""

    name: str = "small_cnn"
    args: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """The optimizer and its schedule, counted in optimizer steps.

    weight_decay_on: all parameters, or only weights (not biases, not norms). args and schedule_args go to the
    optimizer and to the schedule.
    """

    name: str = "sgd"
    lr: float = 0.1
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    base_batch_size: int = 256
    args: dict[str, Any] = field(default_factory=dict)
    momentum: float = 0.9
    weight_decay: float = 5.0e-4
    weight_decay_on: Literal["all", "weights"] = "all"
    schedule: str = "cosine"
    schedule_args: dict[str, Any] = field(default_factory=dict)
    warmup_epochs: float = 1.0
    label_smoothing: float = 0.0
    class_weights: Literal["none", "balanced"] | list[float] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """How long and in which batches. Accumulation is derived: global / (micro x world).

    compile: what torch.compile calls its mode. gradient_exchange, bucket_cap_mb: what DDP sends, and in which portions.
    ema_decay: evaluate and keep an average of the weights over steps too. tf32: let fp32 round products to 11 bits.
    spike: what to do about a loss that jumps. check_replicas_every_steps: also before every save; null: never.
    """

    epochs: int = 5
    max_steps: int | None = None
    global_batch_size: int = 256
    micro_batch_size: int | Auto = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    tf32: bool = False
    clip_grad_norm: float | None = None
    compile: Literal["default", "reduce-overhead"] | bool = False
    parallel: Literal["ddp", "dp", "none"] = "ddp"
    gradient_exchange: Literal["fp32", "bf16"] = "fp32"
    bucket_cap_mb: int = 25
    sync_batchnorm: bool = False
    ema_decay: float | None = None
    reproducible: Literal["fast", "bitwise"] = "fast"
    nan: Literal["stop"] = "stop"
    spike: Literal["none", "warn", "rollback"] = "warn"
    check_replicas_every_steps: int | None = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """When and how the held-out split is measured. The run ends once metric was as good as target in patience
    evaluations, one after the other."""

    every_epochs: int = 1
    batch_size: int | Auto = "auto"
    metric: str = "accuracy"
    target: float | None = None
    patience: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """When checkpoints are committed, how many are kept, and whether an unfinished run goes on."""

    every_steps: int | None = None
    every_minutes: float | None = 10.0
    keep: int = 2
    resume: Literal["auto", "never"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What is written while training."""

    every_steps: int = 10
    tensorboard: bool = True
    gpu_every_seconds: float | None = 5.0
    trackers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Which steps the profiler records: the first and the last, counted from 1."""

    steps: list[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The whole configuration. `RunConfig()` is the quickstart."""

    run: Run = field(default_factory=Run)
    launch: Launch = field(default_factory=Launch)
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    log: Log = field(default_factory=Log)
    profile: Profile = field(default_factory=Profile)
