"""A Plan says which ranks this task starts, on which device, and on which ports they meet.

It is derived from the Allocation and this machine. The candidate ports are computed from the
launch_id, so that all tasks know them without communicating.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

from entrypoint import engines, pmi
from entrypoint.accelerators import amd, nvidia
from entrypoint.console import shell_command
from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers import detect_allocation, per_node, per_rank, slurm
from entrypoint.launchers.allocation import Allocation
from entrypoint.machine import Machine, read_machine
from entrypoint.options import DeviceChoice, LaunchOptions
from entrypoint.world import World, is_loopback, pack_address

# Below Linux's ephemeral range (32768-60999), where outgoing connections take ports at random, and above the range
# where services sit. Source: net.ipv4.ip_local_port_range in the kernel's ip-sysctl documentation.
DEFAULT_PORT_RANGE = (20_000, 32_767)
NUM_CANDIDATE_PORTS = 8


def candidate_ports(launch_id: str, port_range: tuple[int, int] | None = None) -> tuple[int, ...]:
    """Distinct ports, the same on every task that knows `launch_id`."""
    low, high = port_range or DEFAULT_PORT_RANGE
    ports: dict[int, None] = {}
    for attempt in range(NUM_CANDIDATE_PORTS * 8):
        ports[low + int(sha256(f"{launch_id}/{attempt}".encode()).hexdigest(), 16) % (high - low + 1)] = None
    return tuple(ports)[:NUM_CANDIDATE_PORTS]


_SEPARATE_RUNS_FIX = "a separate run for each (CUDA_VISIBLE_DEVICES=MIG-... and its own run.name), or full GPUs only"
# Variables by which schedulers and users give a process GPUs, and their values that mean none.
NO_GPU_VALUES = {
    nvidia.VISIBLE_VARIABLE: nvidia.HIDDEN_VALUES,
    **dict.fromkeys(amd.VISIBLE_VARIABLES, amd.HIDDEN_VALUES),
    "SLURM_GPUS_ON_NODE": ("", "0"),
}
NO_DRIVER_SOURCE = "no NVIDIA driver"  # why a plan has the device cpu, although nobody asked for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What this task will start. `world` is that of its first rank; the others count up from it.

    ports: where rank 0 may listen, in order. agent_store: torchrun's own store already listens on ports[0].
    threads: OMP_NUM_THREADS of each rank. cores: the cores that each rank is bound to; empty: those of this task.
    launch_id: the Allocation's, the same on all tasks. exchanges_hosts: the Allocation's.
    """

    launcher: str
    device: Literal["cpu", "cuda"]
    world: World
    spawn: int
    hosts: tuple[str, ...]
    hostname: str
    ports: tuple[int, ...]
    launch_id: str
    agent_store: bool
    threads: int
    cores: tuple[frozenset[int], ...]
    sources: Mapping[str, str]
    warnings: tuple[str, ...]
    exchanges_hosts: bool = False

    @property
    def one_host(self) -> bool:
        """Whether all ranks can meet on loopback.

        Torchrun's variables count ranks and do not show whether hosts differ.
        """
        return self.world.num_nodes == 1 and self.launcher != "torchrun"

    @property
    def starts_all_ranks(self) -> bool:
        """Whether no other task starts ranks of this world."""
        return self.spawn == self.world.world_size

    def num_threads(self, environ: Mapping[str, str]) -> str:
        """OMP_NUM_THREADS of each rank: the user's, or its share of the cores."""
        return environ.get("OMP_NUM_THREADS") or str(self.threads)

    def worlds(self) -> tuple[World, ...]:
        """The world of each rank that this task starts."""
        first = self.world
        return tuple(replace(first, rank=first.rank + i, local_rank=first.local_rank + i) for i in range(self.spawn))


def plan_allocation(
    allocation: Allocation, options: LaunchOptions, machine: Machine, environ: Mapping[str, str]
) -> Plan:
    """Make the Plan from values only, without reading the world.

    Raises:
        Failure: NODE if requested GPUs are missing, LAUNCH_CONFLICT if numbers contradict each
            other.
    """
    device = choose_device(options, machine, environ)
    chosen = options.device != "auto" or nvidia.hides_all_gpus(environ.get(nvidia.VISIBLE_VARIABLE))
    spawn = _num_ranks_to_start(allocation, options, machine, device)
    ranks_on_node = spawn if allocation.one_task_per_node else allocation.tasks_on_node
    ports = (
        (allocation.master_port,)
        if allocation.master_port
        else candidate_ports(allocation.launch_id, options.port_range)
    )
    world = World(
        rank=allocation.task * spawn,
        local_rank=allocation.local_task * spawn,
        world_size=allocation.num_tasks * spawn,
        local_world_size=ranks_on_node,
        node_rank=allocation.node_rank,
        num_nodes=allocation.num_nodes,
        master_addr=allocation.master_addr,
        master_port=ports[0],
    )
    if not (allocation.exchanges_hosts or environ.get("TORCHELASTIC_RUN_ID")):  # torchrun's agents have met there
        refuse_loopback_master(allocation.launcher, world)
    return Plan(
        launcher=allocation.launcher,
        device=device,
        world=world,
        spawn=spawn,
        hosts=allocation.hosts,
        hostname=machine.hostname,
        ports=ports,
        launch_id=allocation.launch_id,
        agent_store=allocation.agent_store,
        # A rank's share of this task's cores, and at most its share of the machine's. Tasks that are not bound (mpirun
        # --bind-to none, srun --cpu-bind=none) or are bound to the same cores (mpirun's default: one NUMA node) would
        # otherwise each use all of them.
        threads=max(1, min(machine.cores // spawn, machine.machine_cores // ranks_on_node)),
        cores=_cores_near_gpus(machine, spawn) if device == "cuda" else (),
        sources={
            "device": "given" if chosen else "NVML" if device == "cuda" else NO_DRIVER_SOURCE,
            "master_port": "launch key" if not allocation.master_port else "given",
            **allocation.sources,
            **_exchange_sources(allocation, environ),
        },
        warnings=(
            *allocation.warnings,
            *_gpu_warnings(allocation, machine, device, spawn),
            *_unused_warnings(allocation, machine, device, environ),
        ),
        exchanges_hosts=allocation.exchanges_hosts,
    )


def refuse_loopback_master(launcher: str, world: World) -> None:
    """Refuse loopback and 0.0.0.0 as the address of rank 0 for several nodes: each would look for rank 0 on itself.

    Kubeflow and others call the first pod so, on that pod only. By hand, 127.0.0.1 is taken: all "nodes" may be one
    machine, for a test.

    Raises:
        Failure: LAUNCH_CONFLICT.
    """
    is_first_pod = launcher in per_node.PLATFORMS and world.node_rank == 0
    if world.num_nodes == 1 or is_first_pod or not is_loopback(world.master_addr):
        return
    is_by_number = launcher == "local" and any(pack_address(world.master_addr) or ())  # not 0.0.0.0
    if not is_by_number:
        raise Failure(
            f"at {world.master_addr} each of the {world.num_nodes} nodes would look for rank 0 on itself",
            found=f"MASTER_ADDR={world.master_addr}, node {world.node_rank} of {world.num_nodes}",
            expected="a name or address of rank 0's host that all nodes reach",
            fix="unset MASTER_ADDR, if the launcher names the hosts, or set it (--master-addr, PET_MASTER_ADDR) to the "
            "host of rank 0; to try several nodes on one machine: --nodes N --node-rank K --master-addr 127.0.0.1",
            code=ExitCode.LAUNCH_CONFLICT,
        )


def _exchange_sources(allocation: Allocation, environ: Mapping[str, str]) -> dict[str, str]:
    """By what the tasks will tell each other their hosts; empty if they need not."""
    if not allocation.exchanges_hosts:
        return {}
    source = "PMI" if pmi.is_available(environ, allocation.task, allocation.num_tasks) else "a file in the run's folder"
    names = ["hosts"] if allocation.master_addr else ["hosts", "master_addr"]
    return dict.fromkeys(names, source)


def _cores_near_gpus(machine: Machine, spawn: int) -> tuple[frozenset[int], ...]:
    """Each rank's cores, if one task starts several: those of its GPU's NUMA node. Empty: ranks are not bound.

    A rank on another socket pins its memory there, and each copy to its GPU crosses the link between the sockets.
    Ranks stay unbound where one of them would get fewer cores than its share: where GPUs sit on few of the nodes, or
    where the scheduler's own binding does not fit theirs.
    """
    if spawn < 2 or len(machine.gpu_cores) < spawn:
        return ()
    near = tuple(cores & machine.core_ids for cores in machine.gpu_cores[:spawn])
    sharing = [sum(not cores.isdisjoint(other) for other in near) for cores in near]
    share = len(machine.core_ids) // spawn
    has_share = all(cores and len(cores) // ranks >= share for cores, ranks in zip(near, sharing, strict=True))
    return near if has_share and any(cores != machine.core_ids for cores in near) else ()


def choose_device(options: LaunchOptions, machine: Machine, environ: Mapping[str, str]) -> Literal["cpu", "cuda"]:
    """The requested device; without a request, GPUs; the CPU where no NVIDIA driver is.

    Raises:
        Failure: NODE if GPUs were given to the job (or requested) and none can be used, IMAGE_MISMATCH if
            they are AMD's.
    """
    if options.device == "cpu":
        return "cpu"
    if machine.gpus:
        return "cuda"
    promises = [name for name, none in NO_GPU_VALUES.items() if environ.get(name, "") not in none]
    if nvidia.hides_all_gpus(environ.get(nvidia.VISIBLE_VARIABLE)):
        promises = []  # hidden on purpose, whatever the scheduler gave
    requested = options.device == "cuda" or bool(promises)
    only_amd = nvidia.VISIBLE_VARIABLE not in promises and not set(promises).isdisjoint(amd.VISIBLE_VARIABLES)
    if machine.amd_accelerators or only_amd or (requested and machine.amd):
        seen = [machine.amd] if machine.amd else []
        raise amd.unusable_failure([*seen, *(f"{name}={environ[name]}" for name in promises)])
    if requested:
        raise _no_gpu_failure(machine, environ, promises)
    return "cpu"


def _no_gpu_failure(machine: Machine, environ: Mapping[str, str], promises: Sequence[str]) -> Failure:
    engine = engines.ENGINES[machine.container]
    fix = (
        f"start the container with `{engine.command} {engine.gpus}`"
        if engine.command
        else "see whether `nvidia-smi` lists a GPU: if not, the driver is missing "
        f"(`{shell_command('entrypoint doctor')}` tells more)"
    )
    if machine.container == "none" and "SLURM_JOB_ID" in environ and not engines.requests_gpus_of_enroot(environ):
        fix = f"under srun --container-image (pyxis) export {engines.GPU_VARIABLES} before srun; else {fix}"
    name = promises[0] if promises else "CUDA_VISIBLE_DEVICES"
    value = environ.get(name)
    return Failure(
        "no GPU can be used here" + (f", although {promises[0]} promises some" if promises else ""),
        found=f"NVML shows no usable GPU; {name}{' is not set' if value is None else '=' + value}",
        fix=f"{fix}; or train without GPUs: --device cpu",
        code=ExitCode.NODE,
    )


def _num_ranks_to_start(allocation: Allocation, options: LaunchOptions, machine: Machine, device: str) -> int:
    procs_per_node = options.procs_per_node or allocation.procs_per_node
    if not allocation.one_task_per_node:
        if options.procs_per_node not in (None, allocation.tasks_on_node):
            raise Failure(
                "the launcher already starts one process per rank, and their number is not the requested one",
                found=f"--procs-per-node {options.procs_per_node}, and {allocation.tasks_on_node} tasks on this node",
                expected="one task per node with --procs-per-node, or several tasks without it",
                fix="leave out --procs-per-node, or start one task per node (srun --ntasks-per-node=1)",
                code=ExitCode.LAUNCH_CONFLICT,
            )
        spawn = 1
    elif procs_per_node:
        spawn = procs_per_node
    else:
        num_devices = len(machine.gpus) if device == "cuda" else 1
        spawn = 1 if allocation.launcher in per_rank.LAUNCHERS and allocation.num_tasks > 1 else num_devices
    ranks_on_node = spawn if allocation.one_task_per_node else allocation.tasks_on_node
    # With --gpus-per-task each task sees one GPU, its own. Whether the tasks' GPUs differ is
    # checked by UUID before NCCL starts.
    bound_per_task, num_gpus = not allocation.one_task_per_node and len(machine.gpus) == 1, len(machine.gpus)
    plural = "s" * (num_gpus != 1)
    if device == "cuda" and ranks_on_node > 1 and machine.idle:
        raise Failure(
            f"{ranks_on_node} ranks on this node and one MIG instance: CUDA shows a process only its first instance",
            found=f"ranks per node {ranks_on_node}, given {', '.join((*machine.gpus, *machine.idle))}",
            expected="one rank, or GPUs without MIG: NCCL cannot connect MIG instances",
            fix=_SEPARATE_RUNS_FIX,
            code=ExitCode.NODE,
        )
    if device == "cuda" and ranks_on_node > num_gpus and not bound_per_task:
        raise Failure(
            f"{ranks_on_node} ranks on this node and only {num_gpus} GPU{plural}",
            found=f"ranks per node {ranks_on_node}, GPUs visible {num_gpus}",
            expected="one GPU for each rank",
            fix=f"start {num_gpus} rank{plural} per node, or ask the scheduler for {ranks_on_node} GPUs per node",
            code=ExitCode.NODE,
        )
    return spawn


def _gpu_warnings(allocation: Allocation, machine: Machine, device: str, spawn: int) -> tuple[str, ...]:
    if device != "cuda":
        return (amd.unused_warning(machine.amd),) if machine.amd else ()
    ranks_on_node, num_gpus = (spawn if allocation.one_task_per_node else allocation.tasks_on_node), len(machine.gpus)
    if machine.idle:
        return (
            f"{machine.gpus[0]} is a MIG instance, and CUDA shows a process no other GPU beside it; unused: "
            f"{', '.join(machine.idle)}. fix: {_SEPARATE_RUNS_FIX}",
        )
    if ranks_on_node > 1 and num_gpus == 1 and machine.gpus[0].startswith("MIG-"):
        return ("each rank sees a MIG instance, and NCCL may not connect them. fix: ask for GPUs without MIG",)
    if ranks_on_node > 1 and num_gpus == 1:
        return (
            "each rank sees one GPU only: no direct copies between GPUs. fix: srun --gpu-bind=none with "
            "--gpus-per-node instead of --gpus-per-task",
        )
    if ranks_on_node < num_gpus:
        return (
            f"{ranks_on_node} of {num_gpus} visible GPUs are used. "
            f"fix: --procs-per-node {num_gpus}, or a task for each GPU",
        )
    return ()


# What sbatch passes on from the shell that submits, and srun obeys. Source: srun(1), INPUT ENVIRONMENT VARIABLES.
_INHERITED_OPTIONS = (
    "SLURM_CPU_BIND SLURM_CPUS_PER_TASK SLURM_GPU_BIND SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_TRES_BIND "
    "SLURM_TRES_PER_TASK"
)


def _unused_warnings(
    allocation: Allocation, machine: Machine, device: str, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """What the Slurm job has on this node and its tasks do not see. Only the warnings of rank 0's node are shown."""
    if allocation.node_rank or not slurm.in_job(environ):
        return ()
    job_cores, job_gpus = slurm.count_job_resources(environ, machine)
    tasks, gpus = allocation.tasks_on_node, machine.gpus + machine.idle
    rows = (
        (
            "CPUs",
            min(job_cores, machine.machine_cores),
            len(machine.core_ids) * machine.threads_per_core * tasks,
            "cpus-per-task",
        ),
        ("GPUs", job_gpus if device == "cuda" else 0, len(gpus) * tasks, "gpus-per-node"),
    )
    return tuple(
        f"this job has {count} {noun} on this node, and its tasks see {visible}. fix: in the job script, before srun: "
        f"unset {_INHERITED_OPTIONS}; and srun --{option}=N. If another step of the job uses the others, nothing"
        for noun, count, visible, option in rows
        if visible < count
    )


def find_device(environ: Mapping[str, str], device: DeviceChoice) -> Literal["cpu", "cuda"]:
    """Where one process computes that no launcher has to start.

    Raises:
        Failure: as `choose_device` and `read_machine`.
    """
    return choose_device(LaunchOptions(device=device), read_machine(environ, gpus=device != "cpu"), environ)


def make_plan(environ: Mapping[str, str], options: LaunchOptions) -> Plan:
    """Read the environment and this machine, and plan what this task starts.

    Raises:
        Failure: if the launch would train wrongly, hang or fail.
    """
    machine = read_machine(environ, gpus=options.device != "cpu")
    return plan_allocation(detect_allocation(environ, options, machine), options, machine, environ)
