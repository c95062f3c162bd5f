#!/bin/bash
# Train once for each line of settings in FILE, on one GPU each, here 8 lines:
#   sbatch --array=1-8 [options] SCRIPT CONFIG FILE [section.key=value ...]
# SCRIPT is this file. A line of FILE: optim.lr=0.1 train.epochs=20. At most 4 runs at a time:
# --array=1-8%4. More: docs/clusters.md

# Your job: change the numbers.
#SBATCH --job-name=train --output=%x-%A_%a.out # the log is train-JOB_TASK.out
#SBATCH --nodes=1 --ntasks-per-node=1
#SBATCH --gpus-per-node=1                 # or, instead: --gres=gpu:a100:1
#SBATCH --cpus-per-task=8                 # 8 for the GPU
#SBATCH --time=04:00:00 --signal=USR1@120 # 2 minutes before the end: save and stop
#SBATCH --requeue --open-mode=append      # a stopped job waits again, and goes on
# Most sites want some of these: remove one #. SBATCH_* of your shell win: env | grep SBATCH_
##SBATCH --partition=gpu
##SBATCH --account=my_project
##SBATCH --qos=normal
##SBATCH --constraint=a100                # nodes with this feature
##SBATCH --reservation=course
##SBATCH --mail-type=END,FAIL             # and --mail-user=ADDRESS, if your site needs it
##SBATCH --mem=64G                        # where the default is too little

# Your site: remove the # and change the values; for all scripts, in launch/site.env
# module load apptainer || exit 78
# export APPTAINER_BIND=/scratch,/project # folders that the container shall see
[[ ! ${SITE_ENV:-} && ! -e launch/site.env ]] || source "${SITE_ENV:-launch/site.env}" ||
  { echo "ERROR[64] ${SITE_ENV:-site.env} failed; fix: let its last command succeed" >&2; exit 64; }

set -euo pipefail
image=${IMAGE:-train.sif} # IMAGE=FILE names another image
[[ ${REQUIRE_SIGNED:-0} == 0 ]] ||
  apptainer verify --local ${VERIFY_KEY:+--key "$VERIFY_KEY"} "$image" ||
  { echo "ERROR[77] $image is not signed; fix: docs/image.md: Sign and verify" >&2; exit 77; }
functions=$(apptainer exec "$image" entrypoint job-functions) || {
  echo "ERROR[78] $image cannot be run on $(uname -n): the lines above say why" >&2
  echo "  fix: IMAGE=FILE; load Apptainer's module here or in launch/site.env" >&2; exit 78; }
eval "$functions" # they come out of the image, so that this script need not change with it
prepare_sweep "$@" # sets train_args, and code=0
srun --kill-on-bad-exit=1 apptainer exec --nv "$image" train "${train_args[@]}" || code=$?
requeue_or_exit "$code" # back into the queue after 75 (saved and stopped) and the like
