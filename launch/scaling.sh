#!/bin/bash
# Measure how well a training scales over nodes. More: docs/clusters.md
#   NODES="1 2 4" STEPS=300 launch/scaling.sh [sbatch options] CONFIG [section.key=value ...]
#
# For each number of nodes this submits launch/multigpu.sh (SCRIPT=job.sh: a script of yours) with
# the global batch of CONFIG (strong scaling) and with one that grows with the nodes (weak scaling),
# and at last a job that writes the report. An option is one word: --gres=gpu:a100:4.

fail() { printf 'ERROR[%s] %s\n  fix: %s\n' "$@" >&2; exit "$1"; }

# Your site: launch/site.env, or what your shell has loaded. The lines in SCRIPT count in its jobs.
site=${SITE_ENV:-launch/site.env}
if [[ -n ${SITE_ENV:-} || -e $site ]]; then
  source "$site" || fail 64 "$site failed" "mend it; its last command must succeed"
fi
set -euo pipefail

cd -P . # Apptainer binds no folder that was reached through a link
image=${IMAGE:-train.sif} steps=${STEPS:-300} script=${SCRIPT:-${0%/*}/multigpu.sh}
read -ra nodes <<<"${NODES:-1 2 4}"
options=()
while [[ ${1:-} == -* ]]; do
  [[ $1 == --config ]] || options+=("$1")
  shift
done

[[ -z ${SLURM_JOB_ID:-} ]] ||
  fail 64 "this runs on the login node, not in a job" "run it directly: it submits the jobs"
[[ ${nodes[*]:-x} =~ ^[1-9][0-9]*(\ [1-9][0-9]*)*$ && $steps =~ ^[1-9][0-9]*$ ]] ||
  fail 64 "NODES='${NODES:-}' STEPS='$steps'" "NODES='1 2 4' STEPS=300"
[[ -f ${1:-} ]] ||
  fail 64 "no CONFIG${1:+ where it belongs: $*}" "launch/scaling.sh [sbatch options] CONFIG ..."
[[ -f $script ]] || fail 66 "no job script at $script, seen from $PWD" "SCRIPT=job.sh"
[[ -f $image ]] || fail 66 "no image at $image, seen from $PWD" "IMAGE=/path/train.sif"
command -v apptainer >/dev/null ||
  fail 66 "no apptainer on the PATH" "load its module in your shell, or in launch/site.env"

# The file's micro batch may not divide the batches of all jobs; a setting behind CONFIG is kept.
[[ " ${*%%=*} " == *" train.micro_batch_size "* ]] ||
  set -- "$1" train.micro_batch_size=auto "${@:2}"

# `train check` prints "global batch   256 = 64 micro x ...".
batch=$(apptainer exec "$image" train check --config "$@" |
  sed -n 's/^global batch *\([0-9]*\) = .*/\1/p')
[[ $batch ]] ||
  fail 64 "train check names no global batch" "apptainer exec $image train check --config $*"
for count in "${nodes[@]}"; do
  ((batch * count % nodes[0] == 0)) ||
    fail 64 "weak scaling: the global batch on $count nodes is $batch x $count / ${nodes[0]}" \
      "begin NODES with 1, or train.global_batch_size=$((batch - batch % nodes[0] + nodes[0]))"
done

jobs=() # numbers of the submitted jobs
log_every=$((steps < 50 ? steps / 5 + 1 : 10)) # the first log point measures no speed

# submit RUN NODES GLOBAL_BATCH CONFIG [section.key=value ...]
# Submit one training and set `folder`, the folder of its run.
submit() {
  local -r run=$1 count=$2
  local settings=("train.global_batch_size=$3" "train.max_steps=$steps" train.epochs=1000000
    eval.every_epochs=1000000 checkpoint.every_minutes=null checkpoint.resume=never
    "log.every_steps=$log_every" "run.name=$run")
  local words=() word job
  shift 3
  for word in "$@"; do # a key may be given only once, and these settings win
    [[ " ${settings[*]%%=*} " == *" ${word%%=*} "* ]] || words+=("$word")
  done
  job=$(sbatch --parsable "${options[@]}" --nodes="$count" --job-name="$run" --output=%x-%j.out \
    "$script" "${words[@]}" "${settings[@]}")
  jobs+=("${job%%;*}") # behind the number is the cluster, with --clusters
  echo "$run: job ${jobs[-1]}"
  folder=$(apptainer exec "$image" train where --config "${words[@]}" "run.name=$run")
}

strong=() weak=() # folders of the runs
for count in "${nodes[@]}"; do
  submit "scaling-strong-$count" "$count" "$batch" "$@"
  strong+=("$folder")
  if ((count > nodes[0])); then # the first run belongs to both
    submit "scaling-weak-$count" "$count" "$((batch * count / nodes[0]))" "$@"
  fi
  weak+=("$folder")
done

# The report needs one CPU, and the options that say who pays and where it runs.
charged_to=()
for word in "${options[@]}"; do
  if [[ $word =~ ^(-[ApqM]|--(account|partition|qos|clusters?|reservation)=) ]]; then
    charged_to+=("$word")
  fi
done
report() { printf '%q ' apptainer exec "$image" train report "${@:2}" --output "scaling/$1"; }
unset SBATCH_GPUS_PER_NODE SBATCH_GRES # the report needs no GPU
exec sbatch "${charged_to[@]}" --nodes=1 --ntasks=1 --mem=4G --time=00:10:00 \
  --job-name=scaling-report --output=%x-%j.out \
  --dependency="afterany$(printf ':%s' "${jobs[@]}")" \
  --wrap "$(report strong "${strong[@]}"); $(report weak "${weak[@]}")"
