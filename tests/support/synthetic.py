"""Environments of launchers that do not run here, made from their manuals and sources. Slurm's are captured.

Where nothing else is said, a task is rank 3 of 4 on the second of two nodes, or the second node's.
"""

from __future__ import annotations


def torchrun_rank(rank: int, size: int, per_node: int = 1) -> dict[str, str]:
    """One rank of torchrun, whose agents start `per_node` ranks each."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank % per_node, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": per_node}
    numbers |= {"GROUP_RANK": rank // per_node, "GROUP_WORLD_SIZE": size // per_node, "MASTER_PORT": 29500}
    texts = {"MASTER_ADDR": "node01", "TORCHELASTIC_RUN_ID": "none"}
    return {name: str(number) for name, number in numbers.items()} | texts


# --- One process per rank ---
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
OPENMPI_TWO_NODES = OPENMPI | {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
INTEL = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
PALS = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2", "PALS_APID": "1c2d"}
PALS |= {"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PALS_NODEID": "1"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "3",
    "MV2_COMM_WORLD_SIZE": "4",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}
FLUX = {
    "FLUX_JOB_ID": "f2cGjy7Q",
    "FLUX_JOB_SIZE": "4",
    "FLUX_JOB_NNODES": "2",
    "FLUX_TASK_RANK": "3",
    "FLUX_TASK_LOCAL_ID": "1",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "PMI_FD": "17",
    "FLUX_URI": "local:///run/flux/local",
}
JSRUN = {
    "JSM_NAMESPACE_RANK": "3",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
# What MPICH 4.0.2's mpiexec sets beside the numbers, on each host its own.
HYDRA = INTEL | {
    "PMI_FD": "98765",  # no open one
    "HYDI_CONTROL_FD": "7",
    "MPIR_CVAR_CH3_INTERFACE_HOSTNAME": "node02",
}
PER_RANK = {
    "openmpi": OPENMPI_TWO_NODES,
    "flux": FLUX,
    "jsrun": JSRUN,
    "mvapich": MVAPICH,
    "pals": PALS,
    "hydra": HYDRA,
    "pmi": {"PMI_RANK": "3", "PMI_SIZE": "4"},
}

# --- One task per node ---
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    "SKYPILOT_TASK_ID": "sky-2026-11-25-10-00-00-000000_train_1",
}
DSTACK = {
    "DSTACK_NODES_NUM": "2",
    "DSTACK_NODE_RANK": "1",
    "DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2",
    "DSTACK_MASTER_NODE_IP": "10.0.0.1",
    "DSTACK_GPUS_PER_NODE": "8",
    "DSTACK_GPUS_NUM": "16",
}
SAGEMAKER = {
    "SM_HOSTS": '["10.0.0.1","algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_NUM_GPUS": "8",
    "SM_NETWORK_INTERFACE_NAME": "eth0",
}
# Without the training toolkit: these, and the file with the hosts.
SAGEMAKER_BARE = {
    "TRAINING_JOB_NAME": "train-7",
    "TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:1234:training-job/train-7",
}
RESOURCE_CONFIG = '{"current_host": "algo-2", "hosts": ["10.0.0.1", "algo-2"], "network_interface_name": "eth0"}'
HTCONDOR = {"_CONDOR_PROCNO": "1", "_CONDOR_NPROCS": "2", "_CONDOR_SLOT": "slot1"}
HTCONDOR |= {"_CONDOR_REMOTE_SPOOL_DIR": "/var/lib/condor/spool/7/0/cluster7.proc0.subproc0"}
VOLCANO = {
    "VC_TASK_INDEX": "0",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "23456",
}
VERTEX = {
    "CLUSTER_SPEC": '{"cluster": {"workerpool0": ["10.0.0.1:2222"], "workerpool1": ["10.0.0.2:2222"]}, '
    '"environment": "cloud", "task": {"type": "workerpool1", "index": 0, "trial": ""}}',
    "CLOUD_ML_JOB_ID": "7",
}
VERTEX_ALONE = {
    "CLUSTER_SPEC": '{"cluster": {"workerpool0": ["10.0.0.1:2222"]}, "task": {"type": "workerpool0", "index": 0}}',
}
AWS_BATCH = {
    "AWS_BATCH_JOB_NUM_NODES": "2",
    "AWS_BATCH_JOB_NODE_INDEX": "1",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.1",
    "AWS_BATCH_JOB_ID": "f3a1#1",
    "AWS_BATCH_JOB_ATTEMPT": "1",
}
AWS_BATCH_MAIN = AWS_BATCH | {"AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_ID": "f3a1#0"}
del AWS_BATCH_MAIN["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"]
LEADERWORKERSET = {
    "LWS_GROUP_SIZE": "2",
    "LWS_WORKER_INDEX": "1",
    "LWS_LEADER_ADDRESS": "10.0.0.1",
}
BEAKER = {
    "BEAKER_REPLICA_COUNT": "2",
    "BEAKER_REPLICA_RANK": "1",
    "BEAKER_LEADER_REPLICA_HOSTNAME": "10.0.0.1",
    "BEAKER_WORKLOAD_ID": "01JWJ9",
}
PER_NODE = {
    "skypilot": SKYPILOT,
    "dstack": DSTACK,
    "sagemaker": SAGEMAKER,
    "htcondor": HTCONDOR,
    "kubernetes": VOLCANO,
    "vertex": VERTEX,
    "aws-batch": AWS_BATCH,
    "leaderworkerset": LEADERWORKERSET,
    "beaker": BEAKER,
}
ONE_NODE_TASKS = {
    "skypilot": SKYPILOT | {"SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0"},
    "dstack": DSTACK | {"DSTACK_NODES_NUM": "1", "DSTACK_NODE_RANK": "0", "DSTACK_NODES_IPS": "10.0.0.1"},
    "sagemaker": SAGEMAKER | {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
    "htcondor": HTCONDOR | {"_CONDOR_PROCNO": "0", "_CONDOR_NPROCS": "1"},
    "kubernetes": VOLCANO | {"RANK": "0", "WORLD_SIZE": "1"},
    "vertex": VERTEX_ALONE,
    "aws-batch": AWS_BATCH_MAIN | {"AWS_BATCH_JOB_NUM_NODES": "1"},
    "leaderworkerset": LEADERWORKERSET | {"LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"},
    "beaker": BEAKER | {"BEAKER_REPLICA_COUNT": "1", "BEAKER_REPLICA_RANK": "0"},
}
PET = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "4",
    "PET_MASTER_ADDR": "job-master-0",
    "PET_MASTER_PORT": "23456",
}

# --- Job scripts on the first node ---
PBS = {"PBS_JOBID": "7.pbs", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": "/var/spool/pbs/aux/7.pbs"}
TORQUE = {"PBS_JOBID": "7.pbs", "PBS_NUM_NODES": "2", "PBS_NUM_PPN": "8", "PBS_NODENUM": "0"}
GRID_ENGINE = {"JOB_ID": "7", "NHOSTS": "2", "NSLOTS": "16", "PE_HOSTFILE": "/opt/sge/spool/node01/7.1/pe_hostfile"}
LSF = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "node01 8 node02 8", "LSB_HOSTS": "node01 " * 8 + "node02 " * 8}
LSF_FILE = {"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": "/home/me/.lsbatch/7.hostfile"}
OAR = {"OAR_JOB_ID": "7", "OAR_NODEFILE": "/var/lib/oar/7"}
PJM = {"PJM_JOBID": "7", "PJM_NODE": "2"}
AZURE = {"AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5", "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5"}
FLUX_SCRIPT = {"FLUX_URI": "local:///tmp/flux-7/local-0"}

NODEFILE = "node01\nnode01\nnode02\nnode02\n"
PE_LINES = "node01 8 all.q@node01 UNDEFINED\nnode02 8 all.q@node02 UNDEFINED\n"

# environment, host files, command in the fix
SCRIPTS = {
    "pbs": (PBS, {"PBS_NODEFILE": NODEFILE}, "mpiexec -n RANKS --ppn GPUS"),
    "torque": (TORQUE, {}, "mpiexec -n RANKS --ppn GPUS"),
    "pbs-of-a-site": ({"PBS_JOBID": "7", "PBS_NNODES": "2"}, {}, "mpiexec -n RANKS --ppn GPUS"),
    "grid-engine": (GRID_ENGINE, {"PE_HOSTFILE": PE_LINES}, "mpirun -n RANKS"),
    "grid-engine-in-a-container": (GRID_ENGINE, {}, "mpirun -n RANKS"),
    "lsf": (LSF, {}, "jsrun -n NODES"),
    "lsf-file": (LSF_FILE, {"LSB_DJOB_HOSTFILE": NODEFILE}, "mpirun -n RANKS"),
    "oar": (OAR, {"OAR_NODEFILE": NODEFILE}, "mpirun -n RANKS"),
    "pjm": (PJM, {}, "mpiexec -n RANKS"),
    "azure-batch": (AZURE, {}, "mpirun -n RANKS"),
}
ONE_NODE_SCRIPTS = {
    "pbs": (PBS, {"PBS_NODEFILE": "node01\nnode01\n"}),
    "torque": (TORQUE | {"PBS_NUM_NODES": "1"}, {}),
    "grid-engine": (GRID_ENGINE | {"NHOSTS": "1"}, {"PE_HOSTFILE": "node01 8 all.q@node01 UNDEFINED\n"}),
    "lsf": (LSF | {"LSB_MCPU_HOSTS": "node01 8", "LSB_HOSTS": "node01 " * 8}, {}),
    "oar": (OAR, {"OAR_NODEFILE": "node01\nnode01\n"}),
    "pjm": (PJM | {"PJM_NODE": "1"}, {}),
    "azure-batch": ({"AZ_BATCH_NODE_LIST": "10.0.0.4", "AZ_BATCH_HOST_LIST": "10.0.0.4"}, {}),
}
