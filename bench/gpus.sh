#!/bin/bash
# What several GPUs show that one cannot: NCCL's speed, and what happens if a rank dies, hangs or is
# stopped. About 6 minutes, without a network outside the nodes (docs/gpu-first-run.md).
#
#   bench/gpus.sh [DIR]                                                   one node with two or more GPUs
#   sbatch --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 bench/gpus.sh [DIR]      two nodes, one GPU each
#
# SIF names the image: train.sif, if it is there. With SIF= (empty), or without an image, the `train`
# on the PATH is taken.
# DIR (gpus-out), on a file system that all nodes share, gets the output of each part.
set -uo pipefail

out=${1:-gpus-out}
sif=${SIF-train.sif}
if [[ -z ${SIF+set} && ! -e $sif ]]; then sif=; fi
mkdir -p "$out" || exit 73
train=(train)
[[ -n $sif ]] && train=(apptainer exec --nv "$sif" train)
[[ ${SLURM_JOB_NUM_NODES:-1} -gt 1 ]] && train=(srun --kill-on-bad-exit=1 "${train[@]}")

failed=0
part() { # NAME EXPECTED_CODE COMMAND...: runs one part, keeps its output, and says whether it ended as it should
  local name=$1 expected=$2 code=0
  shift 2
  local begun=$SECONDS
  timeout --kill-after 30 "${LIMIT_S:-180}" "$@" >"$out/$name.txt" 2>&1 || code=$?
  printf '%-16s exit code %s, expected %s, %s s\n' "$name" "$code" "$expected" $((SECONDS - begun)) | tee -a "$out/summary.txt"
  [[ $code == "$expected" ]] || { failed=1; tail -n 15 "$out/$name.txt"; }
}

run() { # NAME [setting ...]: a training of 200 steps whose ranks compare their parameters
  printf '%s\n' "${train[@]}" --device cuda "run.name=$1" "run.output_dir=$out/runs" train.epochs=100 train.max_steps=200 \
    train.check_replicas_every_steps=10 log.every_steps=10 checkpoint.every_steps=50 launch.timeouts.step=20 "${@:2}"
}

: >"$out/summary.txt"
rm -rf "$out/runs"
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
mapfile -t words < <(run plain)
part plain 0 "${words[@]}"
part comm 0 "${train[@]}" bench comm --device cuda --output "$out/comm"
for fault in killed:kill9:69 hanging:sleep:91 stopped:term:75; do
  IFS=: read -r name action code <<<"$fault"
  mapfile -t words < <(run "$name")
  FAULT=step:1:60:$action part "$name" "$code" "${words[@]}"
  part "$name-resumed" 0 "${words[@]}" # continues at the last checkpoint
done
printf 'everything is in %s\n' "$out"
exit "$failed"
