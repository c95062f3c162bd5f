"""This module records, removes or refuses the caller's environment variables that affect a training.

Variables that have an effect are recorded. Variables that would change the run without the config
saying so are removed before torch is loaded. Variables that contradict the config are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from entrypoint import DEVICE_VARIABLE, ExitCode, Failure, Handover, redact_value
from train.config.precisions import PRECISIONS

# Removed before torch is loaded: they would silently change the precision, algorithm or engine that the
# config chose. The list comes from reading which variables torch 2.15, accelerate 1.15, triton, oneDNN
# and cuBLAS read.
REMOVED_VARIABLES: Final[Mapping[str, str]] = {
    "ACCELERATE_*": "the config decides",
    "FSDP_*": "the config decides",
    "MEGATRON_LM_*": "the config decides",
    "PARALLELISM_CONFIG_*": "the config decides",
    "DEEPSPEED_*": "the config decides",
    "FORK_LAUNCHED": "the config decides",
    "USE_TORCH_XLA": "launch.device decides",
    "PJRT_DEVICE": "launch.device decides",
    "PT_HPU_LAZY_MODE": "launch.device decides",
    "XLA_USE_BF16": "train.precision decides",
    "XLA_DOWNCAST_BF16": "train.precision decides",
    "ONEDNN_DEFAULT_FPMATH_MODE": "train.precision decides",
    "DNNL_DEFAULT_FPMATH_MODE": "train.precision decides",
    "CUBLAS_EMULAT*": "train.precision decides",
    "CUBLAS_FIXEDPOINT_EMULATION_*": "train.precision decides",
    "NVIDIA_TF32_OVERRIDE": "train.tf32 decides",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "train.tf32 decides",
    "TRITON_F32_DEFAULT": "train.tf32 decides",
    "TORCHDYNAMO_DISABLE": "train.compile decides",
    "TORCHDYNAMO_SUPPRESS_ERRORS": "train.compile decides",
    "TORCH_COMPILE_DISABLE": "train.compile decides",
    "TORCH_COMPILE_BACKEND": "train.compile decides",
    "TORCH_COMPILE_OVERRIDE_BACKENDS": "train.compile decides",
    "TORCHINDUCTOR_USE_FAST_MATH": "train.compile decides",
    "TORCHINDUCTOR_FREEZING": "train.compile decides",
    "TORCHINDUCTOR_USE_RAND4X": "train.compile decides",
    "TRITON_INTERPRET": "train.compile decides",
    "PYTORCH_TUNABLEOP_*": "it chooses kernels with a stopwatch, and a run would not repeat",
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "train.parallel decides",
    # entrypoint.environment.THREAD_BINDING_VARIABLES
    "OMP_PROC_BIND": "all ranks and data workers of a node would share its first core",
    "OMP_PLACES": "all ranks and data workers of a node would share its first core",
    "GOMP_CPU_AFFINITY": "all ranks and data workers of a node would share its first core",
    "KMP_AFFINITY": "all ranks and data workers of a node would share its first core",
    "KMP_HW_SUBSET": "all ranks and data workers of a node would share its first core",
    "KMP_PLACE_THREADS": "all ranks and data workers of a node would share its first core",
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "it lets a file of weights run code",
}
UNBOUND: Final = (("OMP_PROC_BIND", "false"), ("KMP_AFFINITY", "disabled"), ("KMP_AFFINITY", "none"))
# Left to the user, and logged: threads, kernels with the same arithmetic, networks, memory, files,
# debugging.
RECORDED_VARIABLES: Final = (
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "GOTO_*", "BLIS_*", "NPY_*", "NUMPY_*"),
    *("ATEN_*", "ONEDNN_*", "DNNL_*", "FBGEMM_*", "USE_EIGEN_FOR_BLAS", "DISABLE_ADDMM_CUDA_LT", "USE_LIBUV"),
    *("TORCH_*", "PYTORCH_*", "TORCHINDUCTOR_*", "TORCHDYNAMO_*", "TORCHVISION_*", "TRITON_*", "KINETO_*"),
    *("CUDA_*", "CUBLAS_*", "CUBLASLT_*", "CUDNN_*", "CUFFT_*", "NVIDIA_*", "HIP_*", "ROCR_*", "HSA_*"),
    *("NCCL_*", "GLOO_*", "UCX_*", "FI_*", "IBV_*", "OFI_*", "RDMAV_*"),
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES", "MALLOC_*", "TCMALLOC_*"),
    *("PYTHON*", "HF_*", "HUGGINGFACE_*", "TENSORBOARD_*", "CC", "CXX"),
    *("ENTRYPOINT_PROCS_PER_NODE", "ENTRYPOINT_INTERFACE", "ENTRYPOINT_PORT_RANGE"),
)
PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")  # in either case
# Set by us or the image in every start, so they say nothing about the user's choices.
OWN_VARIABLES: Final = (
    *("PYTHONNOUSERSITE", "PYTHONUTF8", "PYTHONUNBUFFERED", "PYTHONSAFEPATH"),
    *("NVIDIA_REQUIRE_*", "NVIDIA_DRIVER_CAPABILITIES"),
)
APPTAINER_LIBRARY_PATH: Final = (
    "/.singularity.d/libs"  # where --nv puts the driver: LD_LIBRARY_PATH of each of its containers
)
# DETAIL wraps gloo, and torch 2.15 casts the wrapper to gloo itself: SIGSEGV in DDP's constructor.
DEBUG_DETAIL_REASON: Final = "DDP on the CPU would crash with DETAIL, INFO works"
MAX_VALUE_CHARACTERS: Final = 80
GOMP_SPINCOUNT: Final = "3000"  # of a waiting thread of OpenMP
TRUE_WORDS: Final = ("1", "true", "yes", "y", "on", "t")
ACCELERATE_ENGINES: Final = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG", "SAGEMAKER")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerVariables:
    """The caller's variables that matter for a training."""

    acting: Mapping[str, str]  # those with an effect; values are shortened and without secrets
    removed: Mapping[str, str]  # with their full values

    def record(self) -> dict[str, dict[str, str]]:
        """For run.json."""
        removed = {name: redact_and_shorten(name, value) for name, value in self.removed.items()}
        return {"acting": dict(self.acting), "removed": removed}

    def describe(self) -> str:
        """The variables with an effect, on one line."""
        return " ".join(f"{name}={value}" for name, value in self.acting.items()) or "none set that acts here"

    def notes(self) -> list[str]:
        """The removed variables, one line for each reason."""
        groups: dict[str, list[str]] = {}
        for name in self.removed:
            groups.setdefault(removal_reason(name) or DEBUG_DETAIL_REASON, []).append(name)
        return [f"{', '.join(names)}: not used, {why}" for why, names in groups.items()]


def remove_conflicting_variables(environ: MutableMapping[str, str], *, download: bool) -> CallerVariables:
    """Remove the variables that would silently change the run, and list those that still have an effect.

    Call it before torch is loaded: its libraries read most of them once, when they are loaded.

    Args:
        download: whether this run fetches its data, so that proxies matter.
    """
    removed = {
        name: environ[name]
        for name in sorted(environ)
        if (removal_reason(name) and (name, environ[name].lower()) not in UNBOUND) or _crashes_ddp(name, environ)
    }
    for name in removed:
        del environ[name]
    ours = Handover.from_environ(environ).added
    acting = (name for name in sorted(environ) if name not in ours and _is_recorded(name, environ[name], download))
    return CallerVariables(acting={name: redact_and_shorten(name, environ[name]) for name in acting}, removed=removed)


def limit_openmp_spinning(environ: MutableMapping[str, str]) -> None:
    """Let waiting OpenMP threads sleep soon. Call it before torch is loaded, which loads OpenMP.

    By default they spin for about a millisecond. If another process was busy too, a small network on
    2 threads was 3 to 10 times slower with it; alone it was not faster (measured on 2 cores).
    """
    if not environ.get("OMP_WAIT_POLICY"):
        environ.setdefault("GOMP_SPINCOUNT", GOMP_SPINCOUNT)


def removal_reason(name: str) -> str | None:
    """Why a variable is removed; None if it stays."""
    return next((why for pattern, why in REMOVED_VARIABLES.items() if fnmatchcase(name, pattern)), None)


def redact_and_shorten(name: str, value: str) -> str:
    """The value without secrets, at most MAX_VALUE_CHARACTERS long, for the console and run.json."""
    value = redact_value(name, value)
    return value if len(value) <= MAX_VALUE_CHARACTERS else value[: MAX_VALUE_CHARACTERS - 3] + "..."


def refuse_contradicting_variables(
    environ: Mapping[str, str], *, device: str, precision: str | None, accumulation: int
) -> None:
    """Refuse variables that contradict the config.

    ACCELERATE_MIXED_PRECISION=no is allowed: `accelerate launch` writes it if nobody chose a precision.

    Args:
        device: cpu or cuda. precision: the effective precision; None if it is not known yet.

    Raises:
        Failure: USAGE, naming the variable, its value and what the run would do.
    """
    values = {name: value.lower() for name, value in environ.items()}
    mixed_precision = values.get("ACCELERATE_MIXED_PRECISION", "")
    is_known = mixed_precision in PRECISIONS
    in_config = f"set train.precision={mixed_precision}" if is_known else "leave precision to the config"
    steps = values.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "")
    # The variable, whether it contradicts, what the run does, and a fix.
    variables = (
        (
            "ACCELERATE_MIXED_PRECISION",
            precision is not None and mixed_precision not in ("", "no", precision),
            f"this run computes in {precision}",
            in_config,
        ),
        (
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
            steps.isdecimal() and steps.lstrip("0") not in ("", "1", str(accumulation)),
            f"this run accumulates {accumulation} = global batch / (micro batch x ranks)",
            "set train.micro_batch_size to what one rank holds",
        ),
        *(
            (name, values.get(name) in TRUE_WORDS, "this program trains with DDP", "leave the engine to train.parallel")
            for name in (f"ACCELERATE_USE_{engine}" for engine in ACCELERATE_ENGINES)
        ),
        (
            "ACCELERATE_DYNAMO_BACKEND",
            values.get("ACCELERATE_DYNAMO_BACKEND", "") not in ("", "no"),
            "train.compile decides",
            "leave it to the config",
        ),
        (
            "ACCELERATE_USE_CPU",
            device == "cuda" and values.get("ACCELERATE_USE_CPU") in TRUE_WORDS,
            "this run computes on GPUs",
            "use --device cpu",
        ),
    )
    for name, contradicts, does, change in variables:
        if contradicts:
            raise Failure(
                f"{name} and the config contradict each other",
                found=f"{name}={environ[name]}",
                expected=does,
                fix=f"{change}; or unset {name} (with `accelerate launch`: leave out its option, or correct its config "
                "file)",
                code=ExitCode.USAGE,
            )


def _crashes_ddp(name: str, environ: Mapping[str, str]) -> bool:
    detail = name == "TORCH_DISTRIBUTED_DEBUG" and environ[name].upper() == "DETAIL"
    return detail and environ.get(DEVICE_VARIABLE) == "cpu"


def _is_recorded(name: str, value: str, download: bool) -> bool:
    if name == "LD_LIBRARY_PATH" and value == APPTAINER_LIBRARY_PATH:
        return False
    if name.lower() in PROXY_VARIABLES:
        return download
    return _matches_any(name, RECORDED_VARIABLES) and not _matches_any(name, OWN_VARIABLES)


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
