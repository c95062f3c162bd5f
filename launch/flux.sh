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

# What Flux does not tell: when the job ends, and which job it continues. 14400 is the time limit
# above in seconds: change both, or `train` does not stop in time to save.
export ENTRYPOINT_JOB_CHAIN=${ENTRYPOINT_JOB_CHAIN:-$(flux getattr jobid)}
variables=ENTRYPOINT_DEADLINE=$(($(date +%s) + 14400)),ENTRYPOINT_JOB_CHAIN=$ENTRYPOINT_JOB_CHAIN

# Your site: remove the # and change the values.
# module load apptainer || exit 78
# export APPTAINER_BIND=/scratch,/project # folders that the container shall see
set -euo pipefail # after the site's lines: modules read variables that are not set

# Below, at most the launcher's line needs a change. Its numbers follow from nodes and GPUs above.
image=${IMAGE:-train.sif}
config=${CONFIG:?name your configuration: CONFIG=cfg.yaml flux batch launch/flux.sh}

# The image brings two functions, which read why the ranks ended: launchers mix their exit codes.
functions=$(apptainer exec "$image" entrypoint job-functions) || {
  echo "ERROR[78] $image cannot be run on $(uname -n): the lines above say why" >&2
  echo "  fix: apptainer exec $image entrypoint job-functions, there, until it prints functions" >&2
  exit 78
}
eval "$functions"
watch_run --config "$config"

# One process per GPU.
code=0
flux run --nodes=2 --ntasks=8 --gpus-per-task=1 --cores-per-task=8 \
  apptainer exec --nv --env "$variables" "$image" train --config "$config" || code=$?

# 75 and the like: saved, or a node was lost. The job submits its successor, which continues there,
# with $0, its own copy of this script. What else you gave to flux batch is lost: write it above.
# `train` itself ends with 93 after three starts without progress.
if may_start_again "$code"; then
  export CONFIG=$config IMAGE=$image
  flux --parent batch "$0" || echo "flux batch failed: no successor" >&2
fi
exit "$code"
