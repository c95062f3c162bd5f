"""PLATFORMS is the table of launchers and schedulers: all that is known about one of them is one record.

What reads the variables of a task stands in `launchers`, for each way in which platforms start tasks; what reads the
scheduler's job, in `job`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

CHAIN_VARIABLE: Final = "ENTRYPOINT_JOB_CHAIN"
# Source: "How Amazon SageMaker AI Provides Training Information".
SAGEMAKER_HOST_FILE: Final = "/opt/ml/input/config/resourceconfig.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts of a job, in the order of their ranks where the platform has one; none if nothing lists them."""

    names: tuple[str, ...] = ()
    own: str | None = None  # which of them this is
    source: str | None = None  # the variable or file that lists them


def _first_word_of_lines(text: str) -> Hosts:
    """Names from a host file: one line for each host or slot, the name first."""
    return Hosts(names=tuple(line.split()[0] for line in text.splitlines() if line.strip()))


def _names(text: str) -> Hosts:
    """Names separated by spaces, commas, semicolons or lines, or in a JSON list."""
    return Hosts(names=tuple(re.findall(r'[^\s,;"\[\]]+', text)))


def _every_second_word(text: str) -> Hosts:
    """Names from `host1 4 host2 4`."""
    return Hosts(names=tuple(text.split()[::2]))


def _resource_config(text: str) -> Hosts:
    """SageMaker's resourceconfig.json: `{"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}`."""
    config = json.loads(text)
    return Hosts(names=tuple(map(str, config["hosts"])), own=str(config["current_host"]))


def _cluster_spec(text: str) -> Hosts:
    """Vertex AI's `{"cluster": {"workerpool0": ["host:port"], ...}, "task": {"type": "workerpool0", "index": 0}}`.

    Pools 0 and 1 train; the other two are parameter servers and evaluators.
    """
    spec = json.loads(text)
    pools = {
        pool: [str(name).rpartition(":")[0] or str(name) for name in names] for pool, names in spec["cluster"].items()
    }
    own = pools[spec["task"]["type"]][int(spec["task"]["index"])]
    return Hosts(names=(*pools["workerpool0"], *pools.get("workerpool1", ())), own=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What one launcher or scheduler sets in the environment, and what it starts.

    A name without a variable is absent: the platform does not tell that fact.
    """

    name: str  # in `entrypoint show`, and of the job in run.json
    # A task for each rank, tasks of a job step (srun), a task on each node, or the job's script on its first node.
    starts: Literal["rank", "step", "node", "script"]
    title: str = ""  # in an error
    # Fact -> its variable. rank, world_size, local_rank, local_world_size, node_rank, num_nodes: as in World.
    # first_node: the node that gets rank 0, if that may be another than node 0; own_host: this node's name among
    # `hosts`, where there is no node_rank; master: the address of node 0, if the first host is not known to be it.
    variables: Mapping[str, str] = field(default_factory=dict)
    # Variables that list the hosts, and what reads them. The first that can be read counts.
    hosts: Mapping[str, Callable[[str], Hosts]] = field(default_factory=dict)
    # Used where none of `hosts` is set: variables that name a file with the hosts, or paths of such files.
    host_files: Mapping[str, Callable[[str], Hosts]] = field(default_factory=dict)
    counts: tuple[str, ...] = ()  # variables with the number of nodes of a script's job, where no hosts can be read
    # Variables that each show this platform, and a word that the value holds; alone they do not tell its size.
    signs: Mapping[str, str] = field(default_factory=dict)
    # Variables with an id of one start, equal on all hosts: the first that is set; those of a script's job together.
    launch_ids: tuple[str, ...] = ()
    # Field of JobInfo -> its variable. `task` is the number in an array of jobs, a part of the id; `sign` must be set
    # too, where `id` is a common name. Where no variable has the job's end, job scripts set ENTRYPOINT_DEADLINE.
    job: Mapping[str, str] = field(default_factory=dict)
    read_job_id: Callable[[str], str] = str
    command: str = ""  # of a script's job: starts one process per GPU on all nodes
    # Variables with the number of a task, and the number in the job script; others were started on their own (pbsdsh).
    first_task: Mapping[str, int] = field(default_factory=dict)
    passes_job_id: bool = False  # the id of the batch job reaches all hosts, and can stand for launch_ids
    # It is a scheduler of its own inside another one's job, whose lists and sizes do not describe its ranks.
    chooses_nodes: bool = False
    rank_counts_nodes: bool = False  # RANK and WORLD_SIZE without LOCAL_RANK are numbers of nodes
    master_knows_itself: bool = True  # node 0 has the `master` variable too

    def get(self, environ: Mapping[str, str], fact: str) -> str | None:
        """The value of this fact's variable; None if it is empty, or there is none."""
        variable = self.variables.get(fact)
        return (environ.get(variable) or None) if variable else None

    def launch_id(self, environ: Mapping[str, str]) -> str:
        """The platform's own id of this start; empty if it does not tell one."""
        return next((environ[name] for name in self.launch_ids if environ.get(name)), "")

    def read_hosts(self, environ: Mapping[str, str], texts: Mapping[str, str]) -> Hosts:
        """The hosts of the job, each once. texts: of the host files (`Machine.host_files`)."""
        sources = [(name, environ.get(name), read) for name, read in self.hosts.items()]
        for name, text, read in (*sources, *((name, texts.get(name), read) for name, read in self.host_files.items())):
            try:
                hosts = read(text) if text else Hosts()
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                continue  # whoever needs the hosts refuses what nothing else describes
            if hosts.names:
                return Hosts(names=tuple(dict.fromkeys(hosts.names)), own=hosts.own, source=name)
        return Hosts()


# Innermost first. If a process has the rank variables of several, the first entry counts.
PLATFORMS: Final = (
    # https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html; ran: 4.1.4, 5.0.7
    Platform(
        name="openmpi",
        starts="rank",
        variables={
            "rank": "OMPI_COMM_WORLD_RANK",
            "world_size": "OMPI_COMM_WORLD_SIZE",
            "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
            "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
        },
        launch_ids=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    # flux-environment(7); it sets PMI_RANK and PMI_SIZE too
    Platform(
        name="flux",
        starts="rank",
        variables={
            "rank": "FLUX_TASK_RANK",
            "world_size": "FLUX_JOB_SIZE",
            "local_rank": "FLUX_TASK_LOCAL_ID",
            "num_nodes": "FLUX_JOB_NNODES",
        },
        launch_ids=("FLUX_JOB_ID",),
        chooses_nodes=True,
    ),
    # IBM's Job Step Manager, on Summit and Sierra: its manual, jsrun(1)
    Platform(
        name="jsrun",
        starts="rank",
        variables={
            "rank": "JSM_NAMESPACE_RANK",
            "world_size": "JSM_NAMESPACE_SIZE",
            "local_rank": "JSM_NAMESPACE_LOCAL_RANK",
            "local_world_size": "JSM_NAMESPACE_LOCAL_SIZE",
        },
        launch_ids=("PMIX_NAMESPACE",),
        chooses_nodes=True,  # LSF's list of hosts holds the launch node too
    ),
    # MVAPICH2's user guide, "Environment variables set by mpirun_rsh"
    Platform(
        name="mvapich",
        starts="rank",
        variables={
            "rank": "MV2_COMM_WORLD_RANK",
            "world_size": "MV2_COMM_WORLD_SIZE",
            "local_rank": "MV2_COMM_WORLD_LOCAL_RANK",
            "local_world_size": "MV2_COMM_WORLD_LOCAL_SIZE",
        },
        launch_ids=("MPISPAWN_MPIRUN_ID", "PMI_JOBID"),
    ),
    # PALS, on HPE Cray's machines with PBS: ALCF's pages on Polaris and Aurora
    Platform(
        name="pals",
        starts="rank",
        variables={
            "rank": "PMI_RANK",
            "world_size": "PMI_SIZE",
            "local_rank": "PMI_LOCAL_RANK",
            "local_world_size": "PMI_LOCAL_SIZE",
        },
        launch_ids=("PALS_APID", "PMI_JOBID"),
    ),
    # The mpiexec of MPICH and Intel MPI; ran: MPICH 4.0.2. PMI_PORT differs between hosts.
    Platform(
        name="hydra",
        starts="rank",
        variables={
            "rank": "PMI_RANK",
            "world_size": "PMI_SIZE",
            "local_rank": "MPI_LOCALRANKID",
            "local_world_size": "MPI_LOCALNRANKS",
        },
        launch_ids=("PMI_JOBID",),
        passes_job_id=True,
    ),
    # What every launcher that speaks PMI-1 sets
    Platform(
        name="pmi", starts="rank", variables={"rank": "PMI_RANK", "world_size": "PMI_SIZE"}, launch_ids=("PMI_JOBID",)
    ),
    # srun(1) and sbatch(1), "OUTPUT ENVIRONMENT VARIABLES". These are the step's: the job's (SLURM_NODELIST,
    # SLURM_NTASKS_PER_NODE) may describe more nodes than the step has. Its tasks are ranks, or start several each.
    Platform(
        name="slurm",
        starts="step",
        variables={
            "rank": "SLURM_PROCID",
            "local_rank": "SLURM_LOCALID",
            "node_rank": "SLURM_NODEID",
            "world_size": "SLURM_STEP_NUM_TASKS",
            "num_nodes": "SLURM_STEP_NUM_NODES",
            "hosts": "SLURM_STEP_NODELIST",
            "local_world_size": "SLURM_STEP_TASKS_PER_NODE",
        },
        job={
            "id": "SLURM_JOB_ID",
            "restart": "SLURM_RESTART_COUNT",  # not set before the first requeue
            "ends_at": "SLURM_JOB_END_TIME",  # not set by Slurm 22.05
            "cluster": "SLURM_CLUSTER_NAME",
            "node": "SLURMD_NODENAME",
        },
    ),
    # Torchrun's flags as variables, which Kubeflow sets: entrypoint/launchers/per_node.py reads them
    Platform(
        name="pet",
        starts="node",
        title="a job of Kubeflow",
        variables={"num_nodes": "PET_NNODES", "node_rank": "PET_NODE_RANK", "master": "PET_MASTER_ADDR"},
        signs={"PET_NNODES": ""},
        launch_ids=("PET_RDZV_ID",),
        rank_counts_nodes=True,
    ),
    # https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html
    Platform(
        name="skypilot",
        starts="node",
        title="a SkyPilot job",
        variables={"num_nodes": "SKYPILOT_NUM_NODES", "node_rank": "SKYPILOT_NODE_RANK"},
        hosts={"SKYPILOT_NODE_IPS": _names},
        signs={"SKYPILOT_NODE_RANK": ""},
        launch_ids=("SKYPILOT_TASK_ID",),
        job={"id": "SKYPILOT_TASK_ID"},
    ),
    # dstack's runner/internal/executor/executor.go, execJob
    Platform(
        name="dstack",
        starts="node",
        title="a dstack task",
        variables={
            "num_nodes": "DSTACK_NODES_NUM",
            "node_rank": "DSTACK_NODE_RANK",
            "master": "DSTACK_MASTER_NODE_IP",
        },
        hosts={"DSTACK_NODES_IPS": _names},
        signs={"DSTACK_NODE_RANK": ""},
        launch_ids=("DSTACK_RUN_ID",),
        job={"id": "DSTACK_RUN_ID"},
    ),
    # ENVIRONMENT_VARIABLES.md of sagemaker-training-toolkit, which sets them: SM_HOSTS=["algo-1","algo-2"]. Without it
    # there is the file.
    Platform(
        name="sagemaker",
        starts="node",
        title="a SageMaker job",
        variables={"own_host": "SM_CURRENT_HOST"},
        hosts={"SM_HOSTS": _names},
        host_files={SAGEMAKER_HOST_FILE: _resource_config},
        signs={"SM_HOSTS": "", "TRAINING_JOB_ARN": ""},
        launch_ids=("TRAINING_JOB_NAME",),
        job={"id": "TRAINING_JOB_NAME"},
    ),
    # HTCondor's src/condor_starter.V6.1/parallel_proc.cpp. Several tasks may share a machine.
    Platform(
        name="htcondor",
        starts="node",
        title="an HTCondor parallel job",
        variables={"num_nodes": "_CONDOR_NPROCS", "node_rank": "_CONDOR_PROCNO"},
        signs={"_CONDOR_NPROCS": ""},
        launch_ids=("_CONDOR_REMOTE_SPOOL_DIR",),
        job={"id": "_CONDOR_REMOTE_SPOOL_DIR"},
    ),
    # A pod of Volcano's PyTorch plugin, PAI-DLC and others, where RANK and WORLD_SIZE count pods:
    # https://volcano.sh/en/docs/pytorch_plugin and https://www.alibabacloud.com/help/en/pai/general-environment-variables
    Platform(
        name="kubernetes",
        starts="node",
        title="a Kubernetes job",
        variables={"num_nodes": "WORLD_SIZE", "node_rank": "RANK", "master": "MASTER_ADDR"},
        signs={"KUBERNETES_SERVICE_HOST": ""},
        job={"id": CHAIN_VARIABLE, "sign": "KUBERNETES_SERVICE_HOST"},  # a pod knows no id of its Job
        rank_counts_nodes=True,
    ),
    # https://cloud.google.com/vertex-ai/docs/training/distributed-training. RANK and WORLD_SIZE are not always set.
    Platform(
        name="vertex",
        starts="node",
        title="a Vertex AI job",
        hosts={"CLUSTER_SPEC": _cluster_spec},
        signs={"CLUSTER_SPEC": "workerpool"},
        launch_ids=("CLOUD_ML_JOB_ID",),
        job={"id": "CLOUD_ML_JOB_ID"},
        rank_counts_nodes=True,
    ),
    # https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html: a multi-node parallel job
    Platform(
        name="aws-batch",
        starts="node",
        title="an AWS Batch job",
        variables={
            "num_nodes": "AWS_BATCH_JOB_NUM_NODES",
            "node_rank": "AWS_BATCH_JOB_NODE_INDEX",
            "first_node": "AWS_BATCH_JOB_MAIN_NODE_INDEX",
            "master": "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
        },
        signs={"AWS_BATCH_JOB_NODE_INDEX": ""},
        launch_ids=("AWS_BATCH_JOB_ATTEMPT",),
        job={"id": "AWS_BATCH_JOB_ID", "sign": "AWS_BATCH_JOB_NODE_INDEX"},
        read_job_id=lambda text: text.partition("#")[0],  # then comes the number of the node
        master_knows_itself=False,
    ),
    # https://lws.sigs.k8s.io, "Labels, annotations and environment variables" of LeaderWorkerSet
    Platform(
        name="leaderworkerset",
        starts="node",
        title="a LeaderWorkerSet group",
        variables={"num_nodes": "LWS_GROUP_SIZE", "node_rank": "LWS_WORKER_INDEX", "master": "LWS_LEADER_ADDRESS"},
        signs={"LWS_WORKER_INDEX": ""},
        job={"id": "LWS_LEADER_ADDRESS"},  # made of the names of the set, the group and the namespace
    ),
    # https://beaker-docs.apps.allenai.org, "Distributed training"; the leader is known with leaderSelection only
    Platform(
        name="beaker",
        starts="node",
        title="a Beaker experiment",
        variables={
            "num_nodes": "BEAKER_REPLICA_COUNT",
            "node_rank": "BEAKER_REPLICA_RANK",
            "master": "BEAKER_LEADER_REPLICA_HOSTNAME",
        },
        signs={"BEAKER_REPLICA_RANK": ""},
        launch_ids=("BEAKER_WORKLOAD_ID",),
        job={"id": "BEAKER_WORKLOAD_ID"},
    ),
    # qsub(1B) and pbsdsh(1B). PBS_NUM_NODES is Torque's; PBS_NNODES is set by some sites, and counts cores on some:
    # last. The job's id holds the number in an array, as 7[1].server.
    Platform(
        name="pbs",
        starts="script",
        title="a PBS job",
        host_files={"PBS_NODEFILE": _first_word_of_lines},
        counts=("PBS_NUM_NODES", "PBS_NNODES"),
        launch_ids=("PBS_JOBID",),
        job={"id": "PBS_JOBID"},
        command="mpiexec -n RANKS --ppn GPUS",
        first_task={"PBS_NODENUM": 0, "PBS_TASKNUM": 1},
    ),
    # qsub(1) of Grid Engine, "ENVIRONMENTAL VARIABLES", and sge_pe(5) for the file
    Platform(
        name="gridengine",
        starts="script",
        title="a Grid Engine job",
        host_files={"PE_HOSTFILE": _first_word_of_lines},
        counts=("NHOSTS",),
        launch_ids=("JOB_ID",),  # not SGE_TASK_ID: mpirun's daemons on other hosts may have their own
        job={"id": "JOB_ID", "task": "SGE_TASK_ID", "restart": "RESTARTED", "sign": "SGE_TASK_ID"},
        command="mpirun -n RANKS",
    ),
    # https://www.ibm.com/docs/en/spectrum-lsf, "Environment variables set for job execution"
    Platform(
        name="lsf",
        starts="script",
        title="an LSF job",
        hosts={"LSB_MCPU_HOSTS": _every_second_word, "LSB_HOSTS": _names},
        host_files={"LSB_DJOB_HOSTFILE": _first_word_of_lines},
        launch_ids=("LSB_JOBID", "LSB_JOBINDEX"),
        job={"id": "LSB_JOBID", "task": "LSB_JOBINDEX"},
        command="mpirun -n RANKS, or jsrun -n NODES -a GPUS -g GPUS",
    ),
    # OAR's user guide, "Environment variables"
    Platform(
        name="oar",
        starts="script",
        title="an OAR job",
        host_files={"OAR_NODEFILE": _first_word_of_lines},
        launch_ids=("OAR_JOB_ID",),
        job={"id": "OAR_JOB_ID"},
        command="mpirun -n RANKS --machinefile $OAR_NODEFILE",
    ),
    # Fujitsu's Technical Computing Suite, on Fugaku: pjsub(1)
    Platform(
        name="pjm",
        starts="script",
        title="a Fujitsu PJM job",
        counts=("PJM_NODE",),
        launch_ids=("PJM_JOBID",),
        job={"id": "PJM_JOBID"},
        command="mpiexec -n RANKS",
    ),
    # https://learn.microsoft.com/azure/batch/batch-compute-node-environment-variables: of a multi-instance task, whose
    # command runs on the primary node
    Platform(
        name="azure-batch",
        starts="script",
        title="an Azure Batch multi-instance task",
        hosts={"AZ_BATCH_NODE_LIST": _names, "AZ_BATCH_HOST_LIST": _names},
        launch_ids=("AZ_BATCH_JOB_ID", "AZ_BATCH_TASK_ID"),
        job={"id": "AZ_BATCH_JOB_ID", "task": "AZ_BATCH_TASK_ID"},
        command="mpirun -n RANKS --host $AZ_BATCH_HOST_LIST",
    ),
    # flux-environment(7): a batch script has no variable with the number of nodes
    Platform(
        name="flux",
        starts="script",
        title="a Flux job",
        signs={"FLUX_URI": ""},
        launch_ids=("FLUX_ENCLOSING_ID", "FLUX_JOB_ID"),
        job={"id": "FLUX_JOB_ID"},
        command="flux run -N NODES -n RANKS --gpus-per-task=1",
    ),
)


# All that a platform may set.
VARIABLES: Final = frozenset(
    name
    for platform in PLATFORMS
    for names in (
        *(platform.variables.values(), platform.hosts, platform.host_files, platform.counts, platform.signs),
        *(platform.launch_ids, platform.job.values(), platform.first_task),
    )
    for name in names
)
# Paths, and variables with the path, of the files that `read_machine` reads.
HOST_FILES: Final = tuple(name for platform in PLATFORMS for name in platform.host_files)


def platforms_that_start(what: str) -> dict[str, Platform]:
    """Name -> platform, in the table's order."""
    return {platform.name: platform for platform in PLATFORMS if platform.starts == what}
