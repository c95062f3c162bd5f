#!/bin/bash
# Train on all GPUs of several nodes of a PBS cluster. More: docs/schedulers.md
#   qsub -v CONFIG=cfg.yaml launch/pbs.sh

#PBS -N train
#PBS -l select=2:ncpus=32:ngpus=4:mpiprocs=4
#PBS -l place=scatter
#PBS -l walltime=04:00:00
#PBS -j oe
##PBS -q gpu
##PBS -A my_project

cd "$PBS_O_WORKDIR"
export ENTRYPOINT_DEADLINE=$(($(date +%s) + 14400)) # PBS does not tell a job when it ends

# Your site: remove the # and change the values.
# module load apptainer openmpi
# export APPTAINER_BIND=/scratch,/project # folders that the container shall see
set -euo pipefail # after the site's lines: modules read variables that are not set

# Nothing below needs a change.
image=${IMAGE:-train.sif}
config=${CONFIG:?name your configuration: qsub -v CONFIG=cfg.yaml launch/pbs.sh}

# One process per GPU. The file with the job's hosts must be seen in the container.
code=0
mpiexec -n 8 --ppn 4 \
  apptainer exec --nv --bind "$PBS_NODEFILE" "$image" train --config "$config" || code=$?

# 75 and the like: saved, or a node was lost. The job submits its successor, which continues there.
# `train` itself ends with 93 after three starts without progress.
if [[ $(apptainer exec "$image" entrypoint requeue "$code") == *requeue* ]]; then
  qsub -v CONFIG="$config",IMAGE="$image" launch/pbs.sh
fi
exit "$code"
