#!/bin/bash
# Train on all GPUs of several nodes of a PBS cluster. More: docs/schedulers.md
#   qsub -v CONFIG=cfg.yaml launch/pbs.sh

#PBS -S /bin/bash
#PBS -N train
#PBS -l select=@NODES@:ncpus=@CPUS@:ngpus=@GPUS@:mpiprocs=@GPUS@
#PBS -l place=scatter
#PBS -l walltime=@TIME@
#PBS -j oe
#PBS -q @PARTITION?gpu@
#PBS -A @ACCOUNT?my_project@
# A line that begins with ## is switched off: remove one # if your site needs it.

cd "$PBS_O_WORKDIR"
# What PBS does not tell: when the job ends, and which job it continues. Apptainer sets these
# variables on all nodes, which not every mpiexec does. @SECONDS@ is the time limit above in seconds:
# change both, or `train` does not stop in time to save.
export ENTRYPOINT_JOB_CHAIN=${ENTRYPOINT_JOB_CHAIN:-$PBS_JOBID}
variables=ENTRYPOINT_DEADLINE=$(($(date +%s) + @SECONDS@)),ENTRYPOINT_JOB_CHAIN=$ENTRYPOINT_JOB_CHAIN

# Your site: remove the # and change the values.
module load @MODULE?apptainer cray-pals@
export APPTAINER_BIND=@BIND?/scratch,/project@ # folders that the container shall see
set -euo pipefail # after the site's lines: modules read variables that are not set

# Below, at most the launcher's line needs a change. Its numbers follow from nodes and GPUs above.
image=${IMAGE:-@IMAGE:train.sif@}
config=${CONFIG:?name your configuration: qsub -v CONFIG=cfg.yaml launch/pbs.sh}

@include part-functions.sh@

# One process per GPU: -n is nodes times GPUs, --ppn the GPUs of a node. PALS, MPICH and Intel MPI
# have --ppn. With Open MPI, write -N instead.
code=0
mpiexec -n @RANKS@ --ppn @GPUS@ \
  apptainer exec --nv --env "$variables" "$image" train --config "$config" || code=$?

# 75 and the like: saved, or a node was lost. The job submits its successor, which continues there,
# with $0, its own copy of this script. What else you gave to qsub is lost: write it above.
# `train` itself ends with 93 after three starts without progress.
if may_start_again "$code"; then
  export CONFIG=$config IMAGE=$image
  qsub -v CONFIG,IMAGE,ENTRYPOINT_JOB_CHAIN "$0" || echo "qsub failed: no successor" >&2
fi
exit "$code"
