#!/bin/bash
# How well a training scales over nodes:  launch/scaling.sh [sbatch options] CONFIG [section.key=value ...]
# Submits launch/multinode.sh once for each number of nodes in NODES ("1 2 4"): the same global batch (strong scaling),
# and one that grows with the nodes (weak), STEPS optimizer steps each; then a job that writes the report. docs/clusters.md
# The micro batch is `auto`, since CONFIG's may not divide on all of them; train.micro_batch_size=N behind CONFIG holds it.
# Not an array: its tasks would all have the same number of nodes.
set -euo pipefail
refuse() { printf 'ERROR[%s] %s\n  fix: %s\n' "$@" >&2; exit "$1"; }; cd -P . # Apptainer binds no folder that was reached through a link
options=(); while [[ ${1:-} == -* ]]; do [[ $1 == --config ]] || options+=("$1"); shift; done
site=${SITE_ENV:-launch/site.env}; [[ -n ${SITE_ENV:-} || -e $site ]] || site=$(realpath -m "${0%/*}/site.env")
trap 'refuse 64 "$site failed" "mend it: Unix line ends, and a last command that succeeds (true)"' EXIT
# shellcheck source=/dev/null  # -u: modules read variables that are not set
if [[ -n ${SITE_ENV:-} || -e $site ]]; then set +u; [[ $(<"$site") != *$'\r'* ]]; . "$site"; set -euo pipefail; export SITE_ENV=$site; fi
trap - EXIT; readonly here=${0%/*} image=${IMAGE:-train.sif} steps=${STEPS:-300}
read -ra nodes <<<"${NODES:-1 2 4}"
[[ -z ${SLURM_JOB_ID:-} ]] || refuse 64 "this runs on the login node, not in a job" "run it directly: it submits the jobs"
[[ ${nodes[*]:-x} =~ ^[1-9][0-9]*(\ [1-9][0-9]*)*$ && $steps =~ ^[1-9][0-9]*$ ]] ||
  refuse 64 "NODES='${NODES:-}' STEPS='$steps'" "NODES='1 2 4' STEPS=300"
[[ -f ${1:-} ]] || refuse 64 "no CONFIG${1:+ where it belongs: $*}" "launch/scaling.sh [sbatch options] CONFIG [section.key=value ...]"
[[ -f $image ]] || refuse 66 "no image at $image, seen from $PWD" "cd to its folder, or IMAGE=/path/train.sif"
[[ " ${*%%=*} " == *" train.micro_batch_size "* ]] || set -- "$1" train.micro_batch_size=auto "${@:2}"
log=$((steps < 50 ? steps / 5 + 1 : 10)) # the first log point is no speed
# The words of `train check`: "global batch   256 = 64 micro x ..."
batch=$(apptainer exec "$image" train check --config "$@" | sed -n 's/^global batch *\([0-9]*\) = .*/\1/p')
[[ $batch ]] || refuse 64 "train check names no global batch" "apptainer exec $image train check --config $*"
for count in "${nodes[@]}"; do
  ((batch * count % nodes[0] == 0)) || refuse 64 "weak scaling: a global batch of $batch on ${nodes[0]} nodes is $batch x $count / ${nodes[0]} on $count" \
    "NODES that begin with 1, or train.global_batch_size=$((batch - batch % nodes[0] + nodes[0]))"
done
jobs=() strong=() weak=() payer=()
measure() { # KIND NODES GLOBAL_BATCH CONFIG [section.key=value ...]: submit one training, and note where its run will be
  local -r run=scaling-$1-$2 count=$2 ours=("train.global_batch_size=$3" "train.max_steps=$steps" train.epochs=1000000
    eval.every_epochs=1000000 checkpoint.every_minutes=null checkpoint.resume=never "log.every_steps=$log")
  local said word words=(); shift 3
  for word in "$@"; do [[ " ${ours[*]%%=*} run.name " == *" ${word%%=*} "* ]] || words+=("$word"); done # ours count
  said=$("$here/multinode.sh" "${options[@]}" --nodes="$count" --job-name="$run" "${words[@]}" "${ours[@]}" "run.name=$run")
  job=$(sed -n 's/^Submitted batch job \([0-9]*\).*/\1/p' <<<"$said"); echo "$run: job ${job:?$said}"; jobs+=("$job")
  folder=$(apptainer exec "$image" train where --config "${words[@]}" "run.name=$run")
}
for count in "${nodes[@]}"; do
  measure strong "$count" "$batch" "$@"; strong+=("$folder")
  # The first is both: what grows has not begun to.
  if ((count > nodes[0])); then measure weak "$count" "$((batch * count / nodes[0]))" "$@"; fi; weak+=("$folder")
done
report() { printf '%q ' apptainer exec "$image" train report "${@:2}" --output "scaling/$1"; } # both, though runs be missing
for word in "${options[@]}"; do # of the trainings' options the report takes who pays and where, and no nodes or GPUs
  [[ $word =~ ^(-[ApqM]|--(account|partition|qos|clusters?|reservation)=) ]] && payer+=("$word")
done
unset SBATCH_GPUS_PER_NODE # the site's, for the trainings
exec sbatch "${payer[@]}" --dependency="afterany$(printf ':%s' "${jobs[@]}")" --nodes=1 --ntasks=1 --time=00:10:00 --job-name=scaling-report \
  --output=slurm-%j.out --wrap "$(report strong "${strong[@]}"); $(report weak "${weak[@]}")"
