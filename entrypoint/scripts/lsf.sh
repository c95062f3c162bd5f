#!/bin/bash
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
#BSUB -q @PARTITION?gpu@
#BSUB -P @ACCOUNT?my_project@
# A line that begins with ## is switched off: remove one # if your site needs it.

# What LSF does not tell: when the job ends, and that its starts continue one another. Apptainer
# sets these variables on all nodes, which not every mpirun does. @SECONDS@ is the time limit above in
# seconds: change both, or `train` does not stop in time to save.
variables=ENTRYPOINT_DEADLINE=$(($(date +%s) + @SECONDS@)),ENTRYPOINT_JOB_CHAIN=$LSB_JOBID.$LSB_JOBINDEX

# Your site: remove the # and change the values.
module load @MODULE?apptainer openmpi@
export APPTAINER_BIND=@BIND?/scratch,/project@ # folders that the container shall see
set -euo pipefail # after the site's lines: modules read variables that are not set

# Below, at most the launcher's line needs a change. Its numbers follow from nodes and GPUs above.
image=${IMAGE:-@IMAGE:train.sif@}
config=${CONFIG:?name your configuration: CONFIG=cfg.yaml bsub < launch/lsf.sh}

@include part-functions.sh@

# One process per GPU.
code=0
mpirun -n @RANKS@ \
  apptainer exec --nv --env "$variables" "$image" train --config "$config" || code=$?

# 75 and the like: saved, or a node was lost. LSF starts a job again that ends with 99.
# `train` itself ends with 93 after three starts without progress.
if may_start_again "$code"; then exit 99; fi
exit "$code"
