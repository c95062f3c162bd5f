#!/bin/bash
# @TITLE:Train on the GPUs of one or more nodes:@  sbatch [options] SCRIPT CONFIG [section.key=value ...]
#   one GPU           options --gpus-per-node=1 --cpus-per-task=8
#   several nodes     --nodes=4
#   one task per GPU  --ntasks-per-node=4 --cpus-per-task=8            More: docs/clusters.md

# Your job: change the numbers.
#SBATCH --job-name=train --output=%x-%j.out # the log is train-JOB.out
#SBATCH --nodes=@NODES@ --ntasks-per-node=@TASKS@ # `train` starts a process per GPU; or a task per GPU
#SBATCH --@GPU_REQUEST@ # or, instead: --gres=gpu:a100:4
#SBATCH --cpus-per-task=@CPUS_PER_TASK@ # @CPUS_PER_GPU@ for each GPU of a task
#SBATCH --time=@TIME@ --signal=USR1@120 # 2 minutes before the end: save and stop
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
srun --kill-on-bad-exit=1 apptainer exec --nv "$image" train "${train_args[@]}" || code=$?
requeue_or_exit "$code" # back into the queue after 75 (saved and stopped) and the like
