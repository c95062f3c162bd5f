#!/bin/bash
# @TITLE@
#   @NAME@.sh [sbatch options] CONFIG [section.key=value ...]
#       checks the configuration and the data, then submits itself
#   sbatch [sbatch options] @NAME@.sh CONFIG [section.key=value ...]
#       submits at once. More: docs/clusters.md

#SBATCH --job-name=train
#SBATCH --nodes=@NODES@
#SBATCH --ntasks-per-node=@TASKS@ # 1: it starts a process per GPU; or as many as GPUs
#SBATCH --@GPU_REQUEST@ # at most as many as a node has
#SBATCH --cpus-per-task=@CPUS_PER_TASK@ # @CPUS_PER_GPU@ for each GPU of a task; fewer if a node has fewer
#SBATCH --time=@TIME@
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append # a requeued job continues its log
#SBATCH --requeue
#SBATCH --signal=USR1@120 # 2 minutes before the end: save and stop
# Most sites want some of these: remove one # to use a line.
#SBATCH --partition=@PARTITION?gpu@
#SBATCH --account=@ACCOUNT?my_project@
#SBATCH --qos=@QOS?normal@
#SBATCH --constraint=@CONSTRAINT?a100@ # nodes with this feature
##SBATCH --reservation=course
##SBATCH --mail-type=END,FAIL
#SBATCH --mem=@MEM?64G@ # of a node, where the default is too little; 0 is all of it
##SBATCH --exclusive # no other job on the node: comparable speed

fail() { printf 'ERROR[%s] %s\n  fix: %s\n' "$@" >&2; exit "$1"; }

# Your site: remove the # and change the values. For all job scripts at once, copy
# launch/site.env.example to launch/site.env. It is read from the folder that you submit from
# (SITE_ENV=FILE names another file), and wins over the lines here and above.
module load @MODULE?apptainer@
export APPTAINER_BIND=@BIND?/scratch,/project@ # folders that the container shall see
# source launch/fabric/infiniband.env || exit 66 # between nodes; or slingshot, ethernet, efa
site=${SITE_ENV:-launch/site.env}
if [[ -n ${SITE_ENV:-} || -e $site ]]; then
  source "$site" || fail 64 "$site failed" "mend it; its last command must succeed"
fi
set -euo pipefail # after the site's lines: modules read variables that are not set

# Nothing below needs a change. IMAGE=FILE names another image.
image=${IMAGE:-@IMAGE:train.sif@}
[[ -f $image ]] || fail 66 "no image at $image, seen from $PWD" "IMAGE=/path/train.sif"
command -v apptainer >/dev/null ||
  fail 66 "no apptainer on the PATH" "load its module in the job script, or in launch/site.env"
if [[ ${REQUIRE_SIGNED:-0} != 0 ]]; then # before anything in the image runs
  apptainer verify --local ${VERIFY_KEY:+--key "$VERIFY_KEY"} "$image" ||
    fail 77 "$image is not signed with a key that is trusted here" "docs/image.md: Sign and verify"
fi

# The image brings two functions. prepare_job sets train_args, the arguments for `train`.
# Outside a job it checks the configuration, submits this script, and exits.
functions=$(apptainer exec "$image" entrypoint job-functions) ||
  fail 78 "$image cannot be run on $(uname -n): the lines above say why" \
    "apptainer exec $image entrypoint job-functions, there, until it prints functions"
eval "$functions"
prepare_job "$@"

code=0
srun --kill-on-bad-exit=1 \
  apptainer exec --nv "$image" train "${train_args[@]}" || code=$?

# Told to stop (time limit, preemption), `train` saves and ends with exit code 75; the next start
# continues there. requeue_or_exit requeues the job after 75, a dead node and the like, at most
# MAX_REQUEUES=20 times, and never after an error that would come again.
requeue_or_exit "$code"
