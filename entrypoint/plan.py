"""A Plan says which ranks this task starts, on which device, and on which ports they meet.

It is derived from the Allocation and this machine. The candidate ports follow from the launch's
key, so that all tasks know them without communicating.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers import detect_allocation
from entrypoint.launchers.allocation import Allocation, Launcher
from entrypoint.machine import Machine, read_machine
from entrypoint.options import LaunchOptions
from entrypoint.world import World

# Below Linux's ephemeral range (32768-60999), where outgoing connections take ports at random, and above the range
# where services sit. Source: net.ipv4.ip_local_port_range in the kernel's ip-sysctl documentation.
DEFAULT_PORT_RANGE = (20_000, 32_767)
NUM_CANDIDATE_PORTS = 8
UINT64_MAX = 2**64 - 1


def candidate_ports(key: str, port_range: tuple[int, int] | None = None) -> tuple[int, ...]:
    """Distinct ports, the same on every task that knows `key`, without talking."""
    low, high = port_range or DEFAULT_PORT_RANGE
    ports: dict[int, None] = {}
    for attempt in range(NUM_CANDIDATE_PORTS * 8):
        ports[low + hash_to_uint64(f"{key}/{attempt}".encode()) % (high - low + 1)] = None
    return tuple(ports)[:NUM_CANDIDATE_PORTS]


def hash_to_uint64(data: bytes) -> int:
    """64 bits, in which each bit of `data` counts: FNV-1a, then the last step of MurmurHash3. No secret depends
    on it, and hashlib would be a tenth of what `entrypoint show` takes.
    """
    found = 0xCBF29CE484222325
    for byte in data:
        found = (found ^ byte) * 0x100000001B3 & UINT64_MAX
    found = (found ^ found >> 33) * 0xFF51AFD7ED558CCD & UINT64_MAX
    found = (found ^ found >> 33) * 0xC4CEB9FE1A85EC53 & UINT64_MAX
    return found ^ found >> 33


_SEPARATE_RUNS_FIX = "a run for each (CUDA_VISIBLE_DEVICES=MIG-..., a run.name of its own), or whole GPUs only"
ENROOT_GPU_VARIABLES = "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What this task will start. `world` is that of its first rank; the further ones follow by counting up.

    ports: where rank 0 may listen, in order. agent_store: torchrun's own store already listens on ports[0].
    threads: for OMP_NUM_THREADS, of each rank. run_id: the launch's nonce, the same on all tasks.
    """

    launcher: Launcher
    device: Literal["cpu", "cuda"]
    world: World
    spawn: int
    hosts: tuple[str, ...]
    hostname: str
    ports: tuple[int, ...]
    run_id: str
    agent_store: bool
    threads: int
    sources: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def one_host(self) -> bool:
        """Whether loopback joins all ranks. A torchrun set tells of ranks, not surely of machines."""
        return self.world.num_nodes == 1 and self.launcher != "torchrun"

    def num_threads(self, environ: Mapping[str, str]) -> str:
        """OMP_NUM_THREADS of each rank: the user's, else its share of the cores."""
        return environ.get("OMP_NUM_THREADS") or str(self.threads)

    def worlds(self) -> tuple[World, ...]:
        """The world of each rank that this task starts."""
        first = self.world
        return tuple(replace(first, rank=first.rank + i, local_rank=first.local_rank + i) for i in range(self.spawn))


def plan_allocation(found: Allocation, options: LaunchOptions, machine: Machine, environ: Mapping[str, str]) -> Plan:
    """Decide; pure.

    Raises:
        Failure: NODE for GPUs that are asked for and not there, LAUNCH_CONFLICT for numbers that contradict each other.
    """
    device = choose_device(options, machine, environ)
    spawn = _num_ranks_to_start(found, options, machine, device)
    here = spawn if found.may_spawn else found.tasks_here
    ports = (found.master_port,) if found.master_port else candidate_ports(found.key, options.port_range)
    world = World(
        rank=found.task * spawn,
        local_rank=found.local_task * spawn,
        world_size=found.num_tasks * spawn,
        local_world_size=here,
        node_rank=found.node_rank,
        num_nodes=found.num_nodes,
        master_addr=found.master_addr,
        master_port=ports[0],
    )
    return Plan(
        launcher=found.launcher,
        device=device,
        world=world,
        spawn=spawn,
        hosts=found.hosts,
        hostname=machine.hostname,
        ports=ports,
        run_id=found.key,
        agent_store=found.agent_store,
        threads=_threads_per_rank(machine, spawn, here),
        sources={"master_port": "launch key" if not found.master_port else "given", **found.sources},
        warnings=found.warnings + _gpu_warnings(found, machine, device, spawn),
    )


def _threads_per_rank(machine: Machine, spawn: int, here: int) -> int:
    """A rank's part of this task's processors. Tasks that are not bound (mpirun --bind-to none, srun
    --cpu-bind=none) or bound together (mpirun's default, to a NUMA node) may each use the same ones: then no more
    than its part of the machine's.
    """
    return max(1, min(machine.cores // spawn, machine.cores_there // here))


def choose_device(options: LaunchOptions, machine: Machine, environ: Mapping[str, str]) -> Literal["cpu", "cuda"]:
    """The device asked for, or GPUs if there are any.

    Raises:
        Failure: NODE, where GPUs were given to the job (or asked for) and none can be used.
    """
    promised = environ.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1", "NoDevFiles")
    if options.device == "cpu":
        return "cpu"
    if machine.gpus:
        return "cuda"
    if options.device == "cuda" or promised:
        raise _no_gpu_failure(machine, environ, promised)
    return "cpu"


def _no_gpu_failure(machine: Machine, environ: Mapping[str, str], promised: bool) -> Failure:
    flags = {"apptainer": "apptainer exec --nv", "docker": "docker run --gpus all"}
    fix = (
        f"start the container with `{flags[machine.container]}`"
        if machine.container in flags
        else "see whether `nvidia-smi` lists a GPU: if not, the driver is missing (`entrypoint doctor` says more)"
    )
    if machine.container == "none" and "SLURM_JOB_ID" in environ and not _requests_gpus_of_enroot(environ):
        fix = f"under srun --container-image (pyxis) export {ENROOT_GPU_VARIABLES} before srun; else {fix}"
    value = environ.get("CUDA_VISIBLE_DEVICES")
    return Failure(
        "no GPU can be used here" + (", although CUDA_VISIBLE_DEVICES promises some" if promised else ""),
        found=f"NVML shows no usable GPU; CUDA_VISIBLE_DEVICES{' is not set' if value is None else '=' + value}",
        fix=f"{fix}; or train without GPUs: --device cpu",
        code=ExitCode.NODE,
    )


def _requests_gpus_of_enroot(environ: Mapping[str, str]) -> bool:
    """Enroot leaves no mark of its own. It gives GPUs where the first is set, and libcuda where the second says so
    (its hook 98-nvidia.sh). No image of ours sets them: a Kubernetes node would give all GPUs to whoever runs it.
    """
    capabilities = environ.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")
    return bool(environ.get("NVIDIA_VISIBLE_DEVICES")) and not {"compute", "all"}.isdisjoint(capabilities)


def _num_ranks_to_start(found: Allocation, options: LaunchOptions, machine: Machine, device: str) -> int:
    asked = options.procs_per_node or found.procs_per_node
    if not found.may_spawn:
        if options.procs_per_node not in (None, found.tasks_here):
            raise Failure(
                "the launcher already starts one process per rank, in another number than asked",
                found=f"--procs-per-node {options.procs_per_node}, and {found.tasks_here} tasks on this node",
                expected="one task per node with --procs-per-node, or several tasks without it",
                fix="leave out --procs-per-node, or start one task per node (srun --ntasks-per-node=1)",
                code=ExitCode.LAUNCH_CONFLICT,
            )
        spawn = 1
    elif asked:
        spawn = asked
    else:
        counted = len(machine.gpus) if device == "cuda" else 1
        spawn = 1 if found.launcher in ("openmpi", "pmi") and found.num_tasks > 1 else counted
    _refuse_too_few_gpus(found, machine, device, spawn)
    return spawn


def _refuse_too_few_gpus(found: Allocation, machine: Machine, device: str, spawn: int) -> None:
    here = spawn if found.may_spawn else found.tasks_here
    # One visible GPU for several tasks is how --gpus-per-task looks from inside a task: each sees its own. Whether
    # they truly differ is compared by UUID before NCCL starts.
    bound_per_task, there = not found.may_spawn and len(machine.gpus) == 1, len(machine.gpus)
    more = "s" * (there != 1)
    if device == "cuda" and here > 1 and machine.idle:
        raise Failure(
            f"{here} ranks on this node and one instance of MIG: CUDA shows a process the first of those given to it",
            found=f"ranks per node {here}, given {', '.join((*machine.gpus, *machine.idle))}",
            expected="one rank, or GPUs without MIG: NCCL does not join instances",
            fix=_SEPARATE_RUNS_FIX,
            code=ExitCode.NODE,
        )
    if device == "cuda" and here > there and not bound_per_task:
        raise Failure(
            f"{here} ranks on this node and only {there} GPU{more}",
            found=f"ranks per node {here}, GPUs visible {there}",
            expected="one GPU for each rank",
            fix=f"start {there} rank{more} per node, or ask the scheduler for {here} GPUs per node",
            code=ExitCode.NODE,
        )


def _gpu_warnings(found: Allocation, machine: Machine, device: str, spawn: int) -> tuple[str, ...]:
    if device != "cuda":
        return ()
    here, gpus = (spawn if found.may_spawn else found.tasks_here), len(machine.gpus)
    if machine.idle:
        return (
            f"{machine.gpus[0]} is an instance of MIG, and CUDA shows a process nothing beside one: not used "
            f"{'is' if len(machine.idle) == 1 else 'are'} {', '.join(machine.idle)}. fix: {_SEPARATE_RUNS_FIX}",
        )
    if here > 1 and gpus == 1 and machine.gpus[0].startswith("MIG-"):
        return ("each rank sees an instance of MIG, and NCCL may not join them. fix: ask for GPUs without MIG",)
    if here > 1 and gpus == 1:
        return (
            "each rank sees one GPU only: no direct copies between GPUs. fix: srun --gpu-bind=none with "
            "--gpus-per-node instead of --gpus-per-task",
        )
    if here < gpus:
        return (f"{here} of {gpus} visible GPUs are used. fix: --procs-per-node {gpus}, or a task for each GPU",)
    return ()


def make_plan(environ: Mapping[str, str], options: LaunchOptions) -> Plan:
    """What this task will start, from the environment and this machine.

    Raises:
        Failure: where launching would train wrongly, hang, or cannot work.
    """
    machine = read_machine(environ, gpus=options.device != "cpu")
    return plan_allocation(detect_allocation(environ, options, machine), options, machine, environ)
