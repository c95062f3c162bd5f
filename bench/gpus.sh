#!/bin/bash
# What several GPUs show that one cannot: NCCL's speed, and what happens if a rank dies, hangs or is
# stopped. Four minutes where all is well, without a network outside the nodes (docs/evidence/gpu-first-run.md).
#
#   bench/gpus.sh [DIR]                      on a node with two or more GPUs
#   sbatch --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=8 --time=30 bench/gpus.sh [DIR]
#
# SIF names the image: train.sif, if it is there. With SIF= (empty), or without an image, the `train`
# on the PATH is taken. DIR (gpus-out), on a file system that all nodes share, gets the output of each
# part, of which each may take LIMIT_S (180) seconds.
set -uo pipefail
cd -P . || exit 66 # Apptainer mounts the current folder only if its path has no symbolic link

out=${1:-gpus-out}
sif=${SIF-train.sif}
if [[ -z ${SIF+set} && ! -e $sif ]]; then sif=; fi
mkdir -p "$out" || exit 73
train=(train)
[[ -n $sif ]] && train=(apptainer exec --nv "$sif" train)
[[ ${SLURM_JOB_NUM_NODES:-1} -gt 1 ]] && train=(srun --kill-on-bad-exit=1 "${train[@]}")
export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK-${SLURM_CPUS_PER_TASK-}} NCCL_DEBUG=${NCCL_DEBUG:-WARN}
[[ -n $SRUN_CPUS_PER_TASK ]] || unset SRUN_CPUS_PER_TASK

failed=0
part() { # NAME EXPECTED_CODE COMMAND...: runs one part, keeps its output, and says whether it ended as it should
  local -r name=$1 expected=$2 begun=$SECONDS
  local code=0 exit_file=$out/runs/${1%-resumed}/errors/exit.json
  shift 2
  timeout --kill-after 30 "${LIMIT_S:-180}" "$@" >"$out/$name.txt" 2>&1 || code=$?
  if [[ -e $exit_file ]]; then # on several nodes srun's own code is not always the run's
    code=$(sed -nE 's/.*"code": ([0-9]+).*/\1/p' "$exit_file")
  fi
  printf '%-16s exit code %s, expected %s, %s s\n' "$name" "$code" "$expected" $((SECONDS - begun)) | tee -a "$out/summary.txt"
  [[ $code == "$expected" ]] || { failed=1; tail -n 15 "$out/$name.txt"; }
}

run() { # NAME: the words of a training of 200 steps whose ranks compare their parameters
  printf '%s\n' "${train[@]}" --device cuda "run.name=$1" "run.output_dir=$out/runs" train.epochs=100 train.max_steps=200 \
    train.check_replicas_every_steps=10 log.every_steps=10 checkpoint.every_steps=50 launch.timeouts.step=20
}

: >"$out/summary.txt"
rm -rf "$out/runs"
mapfile -t words < <(run plain)
part plain 0 "${words[@]}"
if grep -q '"world_size": 1,' "$out/runs/plain/run.json"; then
  printf 'ERROR[78] one rank only\n  fix: give the script two GPUs or two nodes; bench/gpu.sh is for one\n' >&2
  exit 78
fi
part comm 0 "${train[@]}" bench comm --device cuda --output "$out/comm"
for fault in killed:kill9:69 hanging:sleep:91 stopped:term:75; do
  IFS=: read -r name action code <<<"$fault"
  mapfile -t words < <(run "$name")
  FAULT=step:1:60:$action part "$name" "$code" "${words[@]}"
  part "$name-resumed" 0 "${words[@]}" # continues at the last checkpoint
done
rm -rf "$out"/runs/*/checkpoints # large, and of no use to anybody else
printf 'everything is in %s\n' "$out"
exit "$failed"
