#!/bin/bash
# Train on all GPUs of several nodes:  sbatch --nodes=4 launch/multinode.sh CONFIG [section.key=value ...]
# One task per node; each starts one rank per GPU. IMAGE names the SIF (default: train.sif in the folder you submit from).
# Account and partition: export SBATCH_ACCOUNT and SBATCH_PARTITION before you submit.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --output=slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
set -euo pipefail
readonly config=${1:?usage: sbatch launch/multinode.sh CONFIG [section.key=value ...]}
readonly image=${IMAGE:-train.sif} most=${MAX_REQUEUES:-20}
[[ -r $image ]] || { echo "ERROR[66] no image at $image; fix: IMAGE=/path/train.sif sbatch ..." >&2; exit 66; }
readonly run=(apptainer exec --nv "$image" train)
folder=$("${run[@]}" where --config "$config" "${@:2}")
rm -f "$folder/errors/exit.json"

# Slurm signals the ranks itself. This shell only outlives them; a TERM of its own means cancelled or preempted.
ended=0
trap 'ended=1' TERM
trap : USR1 USR2
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun 22.05 forgets the job's
srun --kill-on-bad-exit=1 "${run[@]}" --config "$config" "${@:2}" &
readonly step=$!
while :; do
  code=0
  wait "$step" || code=$?
  kill -0 "$step" 2>/dev/null || break # wait also returns when a signal arrives
done

# srun hides exit codes (the first rank to leave gets the others killed): the run's own word counts.
said=$(sed -n 's/.*"code": *\([0-9]*\).*/\1/p' "$folder/errors/exit.json" 2>/dev/null || true)
code=${said:-$code}
case $code in 69 | 75 | 78 | 91) again=1 ;; *) again=0 ;; esac
if ((again && !ended && ${SLURM_RESTART_COUNT:-0} < most)); then
  echo "exit code $code: requeued, start $((${SLURM_RESTART_COUNT:-0} + 2))"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
