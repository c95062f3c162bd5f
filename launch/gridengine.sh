#!/bin/bash
# Train on all GPUs of several nodes of a Grid Engine cluster. More: docs/schedulers.md
#   qsub -v CONFIG=cfg.yaml launch/gridengine.sh

#$ -S /bin/bash
#$ -N train
#$ -cwd
#$ -pe mpi 8
#$ -l gpu=1
#$ -l h_rt=04:00:00
#$ -j y
#$ -r y
##$ -q gpu
##$ -P my_project
# The names of the parallel environment (mpi) and of the resource for a GPU (gpu, for each slot) are
# your site's: qconf -spl, qconf -sc. Without -S a site may run this with another shell. No -notify:
# its signal ends mpirun's daemons on other nodes, and the process that shows the image's files.

export ENTRYPOINT_DEADLINE=$(($(date +%s) + 14400)) # Grid Engine does not tell when a job ends

# Your site: remove the # and change the values.
# module load apptainer openmpi
# export APPTAINER_BIND=/scratch,/project # folders that the container shall see
set -euo pipefail # after the site's lines: modules read variables that are not set

# Nothing below needs a change.
image=${IMAGE:-train.sif}
config=${CONFIG:?name your configuration: qsub -v CONFIG=cfg.yaml launch/gridengine.sh}

# One process per slot, which is one per GPU. -x is Open MPI's; MPICH and Intel MPI need no option.
code=0
mpirun -n "$NSLOTS" -x ENTRYPOINT_DEADLINE \
  apptainer exec --nv "$image" train --config "$config" || code=$?

# 75 and the like: saved, or a node was lost. Grid Engine starts a job again that ends with 99.
# `train` itself ends with 93 after three starts without progress.
[[ $(apptainer exec "$image" entrypoint requeue "$code") != *requeue* ]] || exit 99
exit "$code"
