#!/bin/bash
# Train on all GPUs of several nodes of an LSF cluster. More: docs/schedulers.md
#   CONFIG=cfg.yaml bsub < launch/lsf.sh

#BSUB -J train
#BSUB -n 8
#BSUB -R "span[ptile=4] affinity[core(8)]"
#BSUB -gpu "num=4/host"
#BSUB -W 240
#BSUB -o lsf-%J.out
#BSUB -r
#BSUB -Q "69 75 78 91"
##BSUB -q gpu
##BSUB -P my_project
# -Q: exit codes after which LSF starts the job again: saved, or a node was lost. `train` itself
# ends with 93 after three starts without progress.

export ENTRYPOINT_DEADLINE=$(($(date +%s) + 14400)) # LSF does not tell a job when it ends

# Your site: remove the # and change the values.
# module load apptainer openmpi
# export APPTAINER_BIND=/scratch,/project # folders that the container shall see
set -euo pipefail # after the site's lines: modules read variables that are not set

# Nothing below needs a change.
image=${IMAGE:-train.sif}
config=${CONFIG:?name your configuration: CONFIG=cfg.yaml bsub < launch/lsf.sh}

# One process per GPU. -x is Open MPI's; MPICH and Intel MPI need no option.
mpirun -n 8 -x ENTRYPOINT_DEADLINE \
  apptainer exec --nv "$image" train --config "$config"
