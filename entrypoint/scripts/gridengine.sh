#!/bin/bash
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
#$ -q @PARTITION?gpu@
#$ -P @ACCOUNT?my_project@
# A line that begins with ## is switched off: remove one # if your site needs it.
# The names of the parallel environment (mpi) and of the resource for a GPU (gpu, for each slot) are
# your site's: qconf -spl, qconf -sc. Without -S a site may run this with another shell. No -notify:
# its signal ends mpirun's daemons on other nodes, and squashfuse, which mounts the image.

# What Grid Engine does not tell: when the job ends, and that its starts continue one another.
# Apptainer sets these variables on all nodes, which not every mpirun does. @SECONDS@ is the time
# limit above in seconds: change both, or `train` does not stop in time to save.
variables=ENTRYPOINT_DEADLINE=$(($(date +%s) + @SECONDS@)),ENTRYPOINT_JOB_CHAIN=$JOB_ID.$SGE_TASK_ID

# Your site: remove the # and change the values.
module load @MODULE?apptainer openmpi@
export APPTAINER_BIND=@BIND?/scratch,/project@ # folders that the container shall see
set -euo pipefail # after the site's lines: modules read variables that are not set

# Below, at most the launcher's line needs a change. Its numbers follow from nodes and GPUs above.
image=${IMAGE:-@IMAGE:train.sif@}
config=${CONFIG:?name your configuration: qsub -v CONFIG=cfg.yaml launch/gridengine.sh}

@include part-functions.sh@

# One process per slot, which is one per GPU.
code=0
mpirun -n "$NSLOTS" \
  apptainer exec --nv --env "$variables" "$image" train --config "$config" || code=$?

# 75 and the like: saved, or a node was lost. Grid Engine starts a job again that ends with 99.
# `train` itself ends with 93 after three starts without progress.
if may_start_again "$code"; then exit 99; fi
exit "$code"
