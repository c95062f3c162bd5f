#!/bin/bash
# Train on all GPUs of several nodes of a Flux cluster. More: docs/schedulers.md
#   CONFIG=cfg.yaml flux batch launch/flux.sh

# flux: --job-name=train
# flux: --nodes=2
# flux: --exclusive
# flux: --time-limit=240m
# flux: --output=flux-{{id}}.out
# if needed, flux: --queue=gpu
# if needed, flux: --bank=my_project

export ENTRYPOINT_DEADLINE=$(($(date +%s) + 14400)) # a task does not know when its job ends

# Your site: remove the # and change the values.
# module load apptainer openmpi
# export APPTAINER_BIND=/scratch,/project # folders that the container shall see
set -euo pipefail # after the site's lines: modules read variables that are not set

# Nothing below needs a change.
image=${IMAGE:-train.sif}
config=${CONFIG:?name your configuration: CONFIG=cfg.yaml flux batch launch/flux.sh}

# One process per GPU.
code=0
flux run --nodes=2 --ntasks=8 --gpus-per-task=1 --cores-per-task=8 \
  apptainer exec --nv "$image" train --config "$config" || code=$?

# 75 and the like: saved, or a node was lost. The job submits its successor, which continues there.
# `train` itself ends with 93 after three starts without progress.
if [[ $(apptainer exec "$image" entrypoint requeue "$code") == *requeue* ]]; then
  CONFIG=$config IMAGE=$image flux --parent batch launch/flux.sh
fi
exit "$code"
