#!/bin/bash
# Train on all GPUs of several nodes. More: docs/clusters.md
#   multinode.sh [sbatch options] CONFIG [section.key=value ...]
#       checks the configuration and the data, then submits itself
#   sbatch [sbatch options] multinode.sh CONFIG [section.key=value ...]
#       submits at once

#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1           # starts one process per GPU
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32            # 8 for each GPU
#SBATCH --time=04:00:00
#SBATCH --output=slurm-%j.out
#SBATCH --open-mode=append            # a requeued job continues its log
#SBATCH --requeue
#SBATCH --signal=USR1@120             # two minutes before the end: save, stop, requeue
##SBATCH --partition=gpu              # remove one # to use a line
##SBATCH --account=my_project
##SBATCH --mem=0                      # all memory of the node, where the default is too little
##SBATCH --exclusive                  # no other job on the node: comparable speed

fail() { printf 'ERROR[%s] %s\n  fix: %s\n' "$@" >&2; exit "$1"; }

# Your site: modules, folders that the container shall see, the network.
# module load apptainer
# export APPTAINER_BIND=/scratch,/project
site=${SITE_ENV:-launch/site.env} # or a file with such lines for all job scripts
if [[ -n ${SITE_ENV:-} || -e $site ]]; then
  source "$site" || fail 64 "$site failed" "mend it; its last command must succeed"
fi
set -euo pipefail # after the site's lines: modules read variables that are not set

image=${IMAGE:-train.sif}
[[ -f $image ]] || fail 66 "no image at $image, seen from $PWD" "IMAGE=/path/train.sif"
if [[ ${REQUIRE_SIGNED:-0} != 0 ]]; then # before anything in the image runs
  apptainer verify --local ${VERIFY_KEY:+--key "$VERIFY_KEY"} "$image" ||
    fail 77 "$image is not signed with a key that is trusted here" "docs/image.md: sign an image"
fi

# The image brings the functions prepare_job and requeue_or_exit.
source <(apptainer exec "$image" entrypoint job-functions)
prepare_job "$@" # outside a job: checks the configuration, submits this script, and exits

code=0
srun --kill-on-bad-exit=1 \
  apptainer exec --nv "$image" train "${train_args[@]}" || code=$?
requeue_or_exit "$code"
