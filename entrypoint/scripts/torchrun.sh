#!/bin/bash
# Train with torchrun, which starts the processes of a node (multigpu.sh needs no torchrun):
#   sbatch [options] SCRIPT CONFIG [section.key=value ...]    SCRIPT is this file

# Your job: change the numbers.
#SBATCH --job-name=train --output=%x-%j.out # the log is train-JOB.out
#SBATCH --nodes=@NODES@ --ntasks-per-node=1 # one task, which starts one process per GPU
#SBATCH --@GPU_REQUEST@ # or, instead: --gres=gpu:a100:4
#SBATCH --cpus-per-task=@CPUS_PER_TASK@ # @CPUS_PER_GPU@ for each GPU of a task
#SBATCH --time=@TIME@ --signal=TERM@120 # USR1 kills torchrun
#SBATCH --requeue --open-mode=append # a stopped job waits again, and goes on
@include part-slurm-options.sh@
#SBATCH --mem=@MEM?64G@ # on each node, where the default is too little
#SBATCH --@EXCLUSIVE?exclusive@ # no other job on the node: comparable speed

# Your site: remove the # and change the values; for all scripts, in launch/site.env
module load @MODULE?apptainer@ || exit 78
export APPTAINER_BIND=@BIND?/scratch,/project@ # folders that the container shall see
source launch/fabric/@FABRIC?infiniband@.env || exit 66 # or slingshot, efa, ethernet; read it first
@include part-slurm-start.sh@
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
