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
# Variables that the user or the site has set -> their effect. A specific name comes before its
# family's pattern.
REPORTED_VARIABLES: Mapping[str, str] = {
    "OMP_NUM_THREADS": "threads of each rank; unset, the cores are shared out among the ranks",
    "MKL_NUM_THREADS": "threads of each rank's matrix products",
    "NCCL_DEBUG": "what NCCL writes into the logs",
    "NCCL_DEBUG_SUBSYS": "which parts of NCCL write into the logs",
    "NCCL_DEBUG_FILE": "where NCCL writes instead of the logs",
    "NCCL_SOCKET_IFNAME": "the network interface that NCCL starts on; unset, the one that leads to rank 0",
    "GLOO_SOCKET_IFNAME": "the network interface of gloo; unset, the one that leads to rank 0",
    "NCCL_IB_HCA": "which InfiniBand devices NCCL uses",
    "NCCL_NET": "the network that NCCL must use; it fails where that is not there",
    "NCCL_NET_GDR_LEVEL": "how far a GPU may be from the network card that reads it",
    "NCCL_NET_PLUGIN": "NCCL's network plugin",
    "NCCL_CROSS_NIC": "whether NCCL's rings change network cards",
    "CUDA_VISIBLE_DEVICES": "which GPUs can be used, and in which order",
    "CUDA_DEVICE_ORDER": "how GPUs are numbered; `train` counts by PCI bus",
    "PYTORCH_CUDA_ALLOC_CONF": "how torch keeps GPU memory",
    "PYTORCH_ALLOC_CONF": "how torch keeps GPU memory",
    "TORCH_HOME": "where torch keeps weights that it downloads",
    "HF_HOME": "where models and data of the Hugging Face hub are kept",
    "MASTER_ADDR": "the host of rank 0",
    "MASTER_PORT": "the one port on which rank 0 listens",
    "ENTRYPOINT_INTERFACE": "the network interface of NCCL and gloo",
    "ENTRYPOINT_PORT_RANGE": "the ports among which rank 0 chooses",
    "ENTRYPOINT_DEVICE": "cpu or cuda, as --device",
    "ENTRYPOINT_PROCS_PER_NODE": "ranks on each node, as --procs-per-node",
    "NCCL_*": "a setting of NCCL",
    "GLOO_*": "a setting of gloo",
    "OMP_*": "a setting of OpenMP's threads",
    "KMP_*": "a setting of OpenMP's threads",
    "FI_*": "a setting of libfabric",
    "UCX_*": "a setting of UCX",
    "TORCH_*": "a setting of torch",
    "TORCHINDUCTOR_*": "a setting of torch.compile",
}
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
    """Report each variable with an effect; one that is empty or 0, and thereby off, is left out."""
    findings: list[Finding] = []
    for name in sorted(environ):
        value = environ[name]
        if (effect := _find_effect(WARNED_VARIABLES, name)) and (value not in _OFF_VALUES or name in _WARNED_AT_ZERO):
            findings.append(
                warn("variables", f"{_format_variable(name, value)}: {effect}", f"unset {name}, unless you want that")
            )
        elif value and (effect := _find_effect(REPORTED_VARIABLES, name)):
            findings.append(ok("variables", f"{_format_variable(name, value)}: {effect}"))
    return findings or [ok("variables", "none that affects a training is set")]


def _find_effect(table: Mapping[str, str], name: str) -> str | None:
    return next((effect for pattern, effect in table.items() if fnmatchcase(name, pattern)), None)


def _format_variable(name: str, value: str) -> str:
    """NAME=value without secrets, shortened."""
    value = redaction.redact_value(name, value)
    return f"{name}={value if len(value) <= _MAX_SHOWN_CHARS else value[: _MAX_SHOWN_CHARS - 3] + '...'}"
