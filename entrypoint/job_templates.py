"""Job scripts for schedulers other than Slurm, with `@NAME@` where a user's values go.

Each holds what a user reads and edits, one command that starts `train` on all nodes, and what starts
the job again after the exit codes that `ExitCode` requeues. They were written from manuals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTemplate:
    """A job script of one scheduler.

    Attributes:
        file: its name in launch/.
        text: with `@NAME@` for a value, and lines that end in ` @PARTITION@` or `@ACCOUNT@` left
            out if the user gives none.
        options: the values of `entrypoint job-script` that it can use.
        image: the default; an Apptainer image's file or the name of an OCI image.
    """

    file: str
    text: str
    options: frozenset[str]
    image: str = "train.sif"


# Left out if the user gives a partition and an account.
EXAMPLE_LINES: Final = "# A line that begins with ## is switched off: remove one # if your site needs it."
_HEAD: Final = """
# Your site: remove the # and change the values.
@SITE@
set -euo pipefail # after the site's lines: modules read variables that are not set

# Below, at most the launcher's line needs a change. Its numbers follow from nodes and GPUs above.
image=${IMAGE:-@IMAGE@}
config=${CONFIG:?name your configuration: @SUBMIT@}
"""
_WATCH: Final = """
# The image brings two functions, which read why the ranks ended: launchers mix their exit codes.
functions=$(apptainer exec "$image" entrypoint job-functions) || {
  echo "ERROR[78] $image cannot be run on $(uname -n): the lines above say why" >&2
  echo "  fix: apptainer exec $image entrypoint job-functions, there, until it prints functions" >&2
  exit 78
}
eval "$functions"
watch_run --config "$config"
"""
_TRAIN: Final = """  apptainer exec --nv --env "$variables" "$image" train --config "$config" || code=$?
"""
_RESUBMIT: Final = """
# 75 and the like: saved, or a node was lost. The job submits its successor, which continues there,
# with $0, its own copy of this script. What else you gave to @COMMAND@ is lost: write it above.
# `train` itself ends with 93 after three starts without progress.
if may_start_again "$code"; then
  export CONFIG=$config IMAGE=$image
  @AGAIN@ || echo "@COMMAND@ failed: no successor" >&2
fi
exit "$code"
"""
_EXIT_99: Final = """
# 75 and the like: saved, or a node was lost. @SCHEDULER@ starts a job again that ends with 99.
# `train` itself ends with 93 after three starts without progress.
if may_start_again "$code"; then exit 99; fi
exit "$code"
"""

_PBS: Final = (
    """#!/bin/bash
# Train on all GPUs of several nodes of a PBS cluster. More: docs/schedulers.md
#   qsub -v CONFIG=cfg.yaml launch/pbs.sh

#PBS -S /bin/bash
#PBS -N train
#PBS -l select=@NODES@:ncpus=@CPUS@:ngpus=@GPUS@:mpiprocs=@GPUS@
#PBS -l place=scatter
#PBS -l walltime=@TIME@
#PBS -j oe
#PBS -q @PARTITION@
#PBS -A @ACCOUNT@
# A line that begins with ## is switched off: remove one # if your site needs it.

cd "$PBS_O_WORKDIR"
# What PBS does not tell: when the job ends, and which job it continues. Apptainer sets these
# variables on all nodes, which not every mpiexec does. @SECONDS@ is the time limit above in seconds:
# change both, or `train` does not stop in time to save.
export ENTRYPOINT_JOB_CHAIN=${ENTRYPOINT_JOB_CHAIN:-$PBS_JOBID}
variables=ENTRYPOINT_DEADLINE=$(($(date +%s) + @SECONDS@)),ENTRYPOINT_JOB_CHAIN=$ENTRYPOINT_JOB_CHAIN
"""
    + _HEAD.replace("@SUBMIT@", "qsub -v CONFIG=cfg.yaml launch/pbs.sh")
    + _WATCH
    + """
# One process per GPU: -n is nodes times GPUs, --ppn the GPUs of a node. PALS, MPICH and Intel MPI
# have --ppn. With Open MPI, write -N instead.
code=0
mpiexec -n @RANKS@ --ppn @GPUS@ \\
"""
    + _TRAIN
    + _RESUBMIT.replace("@COMMAND@", "qsub").replace("@AGAIN@", 'qsub -v CONFIG,IMAGE,ENTRYPOINT_JOB_CHAIN "$0"')
)

_FLUX: Final = (
    """#!/bin/bash
# Train on all GPUs of several nodes of a Flux cluster. More: docs/schedulers.md
#   CONFIG=cfg.yaml flux batch launch/flux.sh

# flux: --job-name=train
# flux: --nodes=@NODES@
# flux: --exclusive
# flux: --time-limit=@MINUTES@m
# flux: --output=flux-{{id}}.out
# flux: --queue=@PARTITION@
# flux: --bank=@ACCOUNT@

# What Flux does not tell: when the job ends, and which job it continues. @SECONDS@ is the time limit
# above in seconds: change both, or `train` does not stop in time to save.
export ENTRYPOINT_JOB_CHAIN=${ENTRYPOINT_JOB_CHAIN:-$(flux getattr jobid)}
variables=ENTRYPOINT_DEADLINE=$(($(date +%s) + @SECONDS@)),ENTRYPOINT_JOB_CHAIN=$ENTRYPOINT_JOB_CHAIN
"""
    + _HEAD.replace("@SUBMIT@", "CONFIG=cfg.yaml flux batch launch/flux.sh")
    + _WATCH
    + """
# One process per GPU.
code=0
flux run --nodes=@NODES@ --ntasks=@RANKS@ --gpus-per-task=1 --cores-per-task=@CPUS_PER_GPU@ \\
"""
    + _TRAIN
    + _RESUBMIT.replace("@COMMAND@", "flux batch").replace("@AGAIN@", 'flux --parent batch "$0"')
)

_GRID_ENGINE: Final = (
    """#!/bin/bash
# Train on all GPUs of several nodes of a Grid Engine cluster. More: docs/schedulers.md
#   qsub -v CONFIG=cfg.yaml launch/gridengine.sh

#$ -S /bin/bash
#$ -N train
#$ -cwd
#$ -pe mpi @RANKS@
#$ -l gpu=1
#$ -l h_rt=@TIME@
#$ -j y
#$ -r y
#$ -q @PARTITION@
#$ -P @ACCOUNT@
# A line that begins with ## is switched off: remove one # if your site needs it.
# The names of the parallel environment (mpi) and of the resource for a GPU (gpu, for each slot) are
# your site's: qconf -spl, qconf -sc. Without -S a site may run this with another shell. No -notify:
# its signal ends mpirun's daemons on other nodes, and squashfuse, which mounts the image.

# What Grid Engine does not tell: when the job ends, and that its starts continue one another.
# Apptainer sets these variables on all nodes, which not every mpirun does. @SECONDS@ is the time
# limit above in seconds: change both, or `train` does not stop in time to save.
variables=ENTRYPOINT_DEADLINE=$(($(date +%s) + @SECONDS@)),ENTRYPOINT_JOB_CHAIN=$JOB_ID.$SGE_TASK_ID
"""
    + _HEAD.replace("@SUBMIT@", "qsub -v CONFIG=cfg.yaml launch/gridengine.sh")
    + _WATCH
    + """
# One process per slot, which is one per GPU.
code=0
mpirun -n "$NSLOTS" \\
"""
    + _TRAIN
    + _EXIT_99.replace("@SCHEDULER@", "Grid Engine")
)

_LSF: Final = (
    """#!/bin/bash
# Train on all GPUs of several nodes of an LSF cluster. More: docs/schedulers.md
#   CONFIG=cfg.yaml bsub < launch/lsf.sh

#BSUB -J train
#BSUB -n @RANKS@
#BSUB -R "span[ptile=@GPUS@] affinity[core(@CPUS_PER_GPU@)]"
#BSUB -gpu "num=@GPUS@/host"
#BSUB -W @MINUTES@
#BSUB -o lsf-%J.out
#BSUB -r
#BSUB -Q 99
#BSUB -q @PARTITION@
#BSUB -P @ACCOUNT@
# A line that begins with ## is switched off: remove one # if your site needs it.

# What LSF does not tell: when the job ends, and that its starts continue one another. Apptainer
# sets these variables on all nodes, which not every mpirun does. @SECONDS@ is the time limit above in
# seconds: change both, or `train` does not stop in time to save.
variables=ENTRYPOINT_DEADLINE=$(($(date +%s) + @SECONDS@)),ENTRYPOINT_JOB_CHAIN=$LSB_JOBID.$LSB_JOBINDEX
"""
    + _HEAD.replace("@SUBMIT@", "CONFIG=cfg.yaml bsub < launch/lsf.sh")
    + _WATCH
    + """
# One process per GPU.
code=0
mpirun -n @RANKS@ \\
"""
    + _TRAIN
    + _EXIT_99.replace("@SCHEDULER@", "LSF")
)

_HTCONDOR: Final = """# Train on all GPUs of several machines of an HTCondor pool.
#   condor_submit launch/htcondor.sub CONFIG=cfg.yaml
# The machines must share the folder that you submit from. More: docs/schedulers.md

universe = parallel
machine_count = @NODES@
request_gpus = @GPUS@
request_cpus = @CPUS@
request_memory = 64GB
# `train` stops in time before @TIME@. A job that runs 10 minutes longer is held.
allowed_job_duration = @SECONDS_AND_TEN_MINUTES@
# accounting_group = @ACCOUNT@

executable = /usr/bin/apptainer
transfer_executable = false
should_transfer_files = no
# The starts of a job continue one another. HTCondor would set OMP_NUM_THREADS to request_cpus,
# which all ranks of a machine share.
environment = "ENTRYPOINT_JOB_CHAIN=$(Cluster) OMP_NUM_THREADS=@CPUS_PER_GPU@"
arguments = exec --nv @IMAGE@ train --config $(CONFIG) --time-limit @TIME@

# Told to leave, the job gets SIGTERM and two minutes to save. Then it starts again, and after the
# loss of a machine too. `train` itself ends with 93 after three starts without progress.
kill_sig = SIGTERM
job_max_vacate_time = 120
on_exit_remove = ExitBySignal == false && !stringListIMember(string(ExitCode), "@CODES@")

log = train-$(Cluster).log
output = train-$(Cluster)-$(Node).out
error = train-$(Cluster)-$(Node).out
queue
"""

_KUBERNETES: Final = """# Train on all GPUs of several Kubernetes nodes, one pod on each. More: docs/schedulers.md
#   kubectl apply -f launch/kubernetes.yaml
# Edit: the image, and the claim of the volume. The volume must be ReadWriteMany and writable for
# user 1000, and holds cfg.yaml, the images and the runs.
apiVersion: v1
kind: Service # gives each pod a name: train-0.train is the one with rank 0
metadata:
  name: train
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    job-name: train
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  completionMode: Indexed
  completions: @NODES@
  parallelism: @NODES@
  backoffLimit: 0
  podFailurePolicy:
    rules:
      # 75 and the like: saved, or a node was lost. These pods start again. `train` itself ends
      # with 93 after three starts without progress.
      - action: Ignore
        onExitCodes:
          containerName: train
          operator: In
          values: [@CODES@]
      - action: Ignore # preempted, drained
        onPodConditions:
          - type: DisruptionTarget
  template:
    spec:
      subdomain: train
      restartPolicy: Never
      terminationGracePeriodSeconds: 120
      securityContext: {fsGroup: 1000}
      containers:
        - name: train
          image: @IMAGE@
          args: [train, --config, cfg.yaml]
          workingDir: /work
          env:
            - {name: PET_NNODES, value: "@NODES@"}
            - {name: PET_MASTER_ADDR, value: train-0.train}
            - {name: PET_MASTER_PORT, value: "23456"}
            - name: ENTRYPOINT_JOB_CHAIN # all pods of the Job: their starts without progress count
              valueFrom:
                fieldRef:
                  fieldPath: metadata.labels['batch.kubernetes.io/controller-uid']
            - name: PET_NODE_RANK
              valueFrom:
                fieldRef:
                  fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
          resources:
            limits:
              nvidia.com/gpu: @GPUS@
              cpu: @CPUS@
          volumeMounts:
            - {name: work, mountPath: /work}
            - {name: shm, mountPath: /dev/shm}
      volumes:
        - name: work
          persistentVolumeClaim:
            claimName: work
        - name: shm # workers of the data loader pass images through it
          emptyDir:
            medium: Memory
"""

_SKYPILOT: Final = """# Train on all GPUs of several cloud machines with SkyPilot. More: docs/schedulers.md
#   sky jobs launch launch/skypilot.yaml --env CONFIG=cfg.yaml
# Edit: the kind of GPU, the image in your registry, and the bucket that keeps the run.
# SkyPilot installs itself in the image, as root or with sudo without a password. This image's user
# is 1000: push one built with `FROM train` and `USER root`.
name: train
num_nodes: @NODES@
resources:
  accelerators: A100:@GPUS@
  image_id: docker:@IMAGE@
  use_spot: true
workdir: .
file_mounts:
  /runs:
    name: my-training-runs
    store: s3
    mode: MOUNT_CACHED
envs:
  CONFIG: cfg.yaml
# A preempted machine is replaced, and the training continues from the newest checkpoint in the
# bucket. Uploads run in the background, so the last one may be missing. All nodes must see a new
# file within 35 seconds, or the start is refused. We did not try this.
run: |
  export ENTRYPOINT_JOB_CHAIN=$SKYPILOT_TASK_ID # a recovered job keeps it
  train --config "$CONFIG" run.output_dir=/runs
"""

_OCI_IMAGE: Final = "registry.example.com/train:latest"
_BATCH_OPTIONS: Final = frozenset(("nodes", "gpus_per_node", "cpus_per_gpu", "time", "partition", "account", "image"))
_SCRIPT_OPTIONS: Final = _BATCH_OPTIONS | {"module", "bind"}
TEMPLATES: Final = {
    "pbs": JobTemplate(file="pbs.sh", text=_PBS, options=_SCRIPT_OPTIONS),
    "flux": JobTemplate(file="flux.sh", text=_FLUX, options=_SCRIPT_OPTIONS),
    "gridengine": JobTemplate(file="gridengine.sh", text=_GRID_ENGINE, options=_SCRIPT_OPTIONS),
    "lsf": JobTemplate(file="lsf.sh", text=_LSF, options=_SCRIPT_OPTIONS),
    "htcondor": JobTemplate(file="htcondor.sub", text=_HTCONDOR, options=_BATCH_OPTIONS - {"partition"}),
    "kubernetes": JobTemplate(
        file="kubernetes.yaml",
        text=_KUBERNETES,
        options=_BATCH_OPTIONS - {"partition", "account", "time"},
        image=_OCI_IMAGE,
    ),
    "skypilot": JobTemplate(
        file="skypilot.yaml",
        text=_SKYPILOT,
        options=frozenset(("nodes", "gpus_per_node", "image")),
        image=_OCI_IMAGE,
    ),
}
