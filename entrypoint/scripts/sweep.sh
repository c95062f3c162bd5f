#!/bin/bash
# Train once for each line of settings in FILE, on one GPU each, here 8 lines:
#   sbatch --array=1-8 [options] SCRIPT CONFIG FILE [section.key=value ...]
# SCRIPT is this file. A line of FILE: optim.lr=0.1 train.epochs=20. At most 4 runs at a time:
# --array=1-8%4. More: docs/clusters.md

# Your job: change the numbers.
#SBATCH --job-name=train --output=%x-%A_%a.out # the log is train-JOB_TASK.out
#SBATCH --nodes=@NODES@ --ntasks-per-node=1
#SBATCH --@GPU_REQUEST@ # or, instead: --gres=gpu:a100:1
#SBATCH --cpus-per-task=@CPUS_PER_TASK@ # @CPUS_PER_GPU@ for the GPU
#SBATCH --time=@TIME@ --signal=USR1@120 # 2 minutes before the end: save and stop
#SBATCH --requeue --open-mode=append # a stopped job waits again, and goes on
@include part-slurm-options.sh@
#SBATCH --mem=@MEM?64G@ # where the default is too little

# Your site: remove the # and change the values; for all scripts, in launch/site.env
module load @MODULE?apptainer@ || exit 78
export APPTAINER_BIND=@BIND?/scratch,/project@ # folders that the container shall see
@include part-slurm-start.sh@
prepare_sweep "$@" # sets train_args, and code=0
srun --kill-on-bad-exit=1 apptainer exec --nv "$image" train "${train_args[@]}" || code=$?
requeue_or_exit "$code" # back into the queue after 75 (saved and stopped) and the like
