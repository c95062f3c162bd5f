"""The variable checks list the environment variables that affect a training, and how.

They also warn of settings that leak in from the host's Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from entrypoint import environment, redaction
from entrypoint.doctor.context import CheckContext, Finding, ok, warn

_MAX_SHOWN_CHARS = 60
_OFF_VALUES = ("", "0")
# Variables that do harm, or lack the effect that the user expects -> their effect.
WARNED_VARIABLES: Mapping[str, str] = {
    "ACCELERATE_MIXED_PRECISION": "`train` refuses it where it contradicts train.precision, and uses the config's",
    "ACCELERATE_*": "`train` does not use it, the config decides; a script under `entrypoint run` gets it",
    "CUDA_LAUNCH_BLOCKING": "the CPU waits for each kernel: for debugging, several times slower",
    "NCCL_IB_DISABLE": "NCCL does not use InfiniBand or RoCE: TCP between nodes, much slower",
    "NCCL_P2P_DISABLE": "no direct copies between GPUs of a node: slower",
    "NCCL_SHM_DISABLE": "ranks of a node do not use shared memory: slower",
    "NCCL_NET_DISABLE_INTRA": "it changes the transport between ranks of a node",
    "NCCL_PROTO": "it fixes NCCL's protocol; some networks need that (Slingshot: ^LL128), others become slower",
    "NCCL_ALGO": "it fixes NCCL's algorithm: slower for all sizes but one",
    "NCCL_BLOCKING_WAIT": "NCCL has no such variable any more; TORCH_NCCL_BLOCKING_WAIT is its name",
    "NCCL_ASYNC_ERROR_HANDLING": "torch reads TORCH_NCCL_ASYNC_ERROR_HANDLING now",
    "TORCH_NCCL_BLOCKING_WAIT": "the CPU waits for each collective: slower",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL checks each collective: slower; on the CPU `train` leaves it out",
    "NVIDIA_TF32_OVERRIDE": "`train` does not use it: train.tf32 decides",
    "TORCHDYNAMO_DISABLE": "`train` does not use it: train.compile decides",
    "TORCH_COMPILE_DISABLE": "`train` does not use it: train.compile decides",
    **dict.fromkeys(
        environment.THREAD_BINDING_VARIABLES,
        "`train` does not use it, nor several ranks under `entrypoint run`: all would share the first core. Bind "
        "processes instead (taskset, srun --cpu-bind)",
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "each allocation asks the driver: for debugging, many times slower",
    "LD_PRELOAD": "it puts a library before all others, in each rank",
}
# What a user or a site sets on purpose, and what acts: shown with its value, for whoever reads a report.
SHOWN_VARIABLES = (
    *("NCCL_*", "GLOO_*", "FI_*", "UCX_*", "OMP_*", "KMP_*", "MKL_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTORCH_*", "TORCH_*", "TORCHINDUCTOR_*", "HF_HOME"),
    *("ENTRYPOINT_INTERFACE", "ENTRYPOINT_PORT_RANGE", "ENTRYPOINT_DEVICE", "ENTRYPOINT_PROCS_PER_NODE"),
)
_WARNED_AT_ZERO = ("NVIDIA_TF32_OVERRIDE",)  # 0 has an effect too


def check(context: CheckContext) -> list[Finding]:
    """Check for leaks of the host's Python, then report each variable."""
    return [*host_python_findings(context.environ), *variable_findings(context.environ)]


def host_python_findings(environ: Mapping[str, str]) -> list[Finding]:
    """Report settings that `clean_environ` removes, and conda's folders in LD_LIBRARY_PATH."""
    _, notes = environment.clean_environ(environ, foreign=False, scratch=None)
    fix = "unset it in the shell that starts (apptainer: --no-home or APPTAINERENV_PYTHONPATH=); no rank gets it anyway"
    findings = [warn("host python", note, fix) for note in notes]
    prefix = environ.get("CONDA_PREFIX")
    if prefix and any(part.startswith(prefix) for part in environ.get("LD_LIBRARY_PATH", "").split(":")):
        text = f"LD_LIBRARY_PATH points into conda ({prefix}): its libraries come before torch's own"
        findings.append(warn("host python", text, "conda deactivate, or unset LD_LIBRARY_PATH"))
    return findings or [ok("host python", "nothing of it leaks in")]


def variable_findings(environ: Mapping[str, str]) -> list[Finding]:
    """Warn of each variable that does harm, and list the others; one that is empty or 0, and thereby off, does none."""
    findings: list[Finding] = []
    shown = []
    for name, value in sorted(environ.items()):
        effect = next((effect for pattern, effect in WARNED_VARIABLES.items() if fnmatchcase(name, pattern)), None)
        if effect and (value not in _OFF_VALUES or name in _WARNED_AT_ZERO):
            text = f"{_format_variable(name, value)}: {effect}"
            findings.append(warn("variables", text, f"unset {name}, unless you want that"))
        elif value and any(fnmatchcase(name, pattern) for pattern in SHOWN_VARIABLES):
            shown.append(_format_variable(name, value))
    if shown:
        findings.append(ok("variables", f"set, and used: {', '.join(shown)}"))
    return findings or [ok("variables", "none that affects a training is set")]


def _format_variable(name: str, value: str) -> str:
    """NAME=value without secrets, shortened."""
    value = redaction.redact_value(name, value)
    return f"{name}={value if len(value) <= _MAX_SHOWN_CHARS else value[: _MAX_SHOWN_CHARS - 3] + '...'}"
