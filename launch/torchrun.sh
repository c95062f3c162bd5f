#!/bin/bash
# Train with torchrun, which starts the processes of a node (multigpu.sh needs no torchrun):
#   sbatch [options] SCRIPT CONFIG [section.key=value ...]    SCRIPT is this file

# Your job: change the numbers.
#SBATCH --job-name=train --output=%x-%j.out # the log is train-JOB.out
#SBATCH --nodes=2 --ntasks-per-node=1     # one task, which starts one process per GPU
#SBATCH --gpus-per-node=4                 # or, instead: --gres=gpu:a100:4
#SBATCH --cpus-per-task=32                # 8 for each GPU of a task
#SBATCH --time=04:00:00 --signal=TERM@120 # USR1 kills torchrun
#SBATCH --requeue --open-mode=append      # a stopped job waits again, and goes on
# Most sites want some of these: remove one #. SBATCH_* of your shell win: env | grep SBATCH_
##SBATCH --partition=gpu
##SBATCH --account=my_project
##SBATCH --qos=normal
##SBATCH --constraint=a100                # nodes with this feature
##SBATCH --reservation=course
##SBATCH --mail-type=END,FAIL             # and --mail-user=ADDRESS, if your site needs it
##SBATCH --mem=64G                        # on each node, where the default is too little
##SBATCH --exclusive                      # no other job on the node: comparable speed

# Your site: remove the # and change the values; for all scripts, in launch/site.env
# module load apptainer || exit 78
# export APPTAINER_BIND=/scratch,/project # folders that the container shall see
# source launch/fabric/infiniband.env || exit 66 # or slingshot, efa, ethernet; read it first
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
prepare_job "$@" # sets train_args, and code=0

# The first host comes from Slurm: torchrun would compare host names. PET_NODE_RANK is torchrun's
# variable for the node's number, which only a task knows. The port differs from job to job.
torchrun=(torchrun --nnodes="$SLURM_JOB_NUM_NODES"
  --nproc-per-node="${ENTRYPOINT_PROCS_PER_NODE:-${SLURM_GPUS_ON_NODE:-gpu}}"
  --master-addr="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"
  --master-port="$((20000 + SLURM_JOB_ID % 12768))" -m train)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # torchrun's own default, without its warning
# shellcheck disable=SC2016 # the task's shell replaces SLURM_NODEID
srun --kill-on-bad-exit=1 bash -c 'PET_NODE_RANK=$SLURM_NODEID exec "$@"' bash \
  apptainer exec --nv "$image" "${torchrun[@]}" "${train_args[@]}" || code=$?
requeue_or_exit "$code" # back into the queue after 75 (saved and stopped) and the like
