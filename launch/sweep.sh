#!/bin/bash
# Train once for each line of overrides in FILE, as an array:  launch/sweep.sh CONFIG FILE [section.key=value ...]
# Run directly it checks CONFIG and submits as many tasks as FILE has lines; line 3 of lr.txt becomes the run lr-3. docs/clusters.md
#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=8 --time=04:00:00
#SBATCH --job-name=train --output=slurm-%A_%a.out --open-mode=append --requeue --signal=USR1@120
##SBATCH --mem=64G  # many sites give a few GB for each CPU, and loading data may need more
##SBATCH --exclusive  # no neighbours: speed that can be compared, and all of the node's network
set -euo pipefail
refuse() { printf 'ERROR[%s] %s\n  fix: %s\n' "$@" >&2; exit "$1"; }; cd -P . # Apptainer binds no folder that was reached through a link
options=(); while [[ ${1:-} == -* ]]; do [[ $1 == --config ]] || options+=("$1"); shift; done # sbatch's, when this is run directly
site=${SITE_ENV:-launch/site.env}; [[ -n ${SITE_ENV:-} || -e $site ]] || site=$(realpath -m "${0%/*}/site.env")
trap 'refuse 64 "$site failed" "mend it: Unix line ends, and a last command that succeeds (true)"' EXIT
# shellcheck source=/dev/null  # -u: modules read variables that are not set
if [[ -n ${SITE_ENV:-} || -e $site ]]; then set +u; [[ $(<"$site") != *$'\r'* ]]; . "$site"; set -euo pipefail; export SITE_ENV=$site; fi
trap - EXIT; readonly given=("$@") image=${IMAGE:-train.sif}
[[ (-f ${1:-} || ${1:-} == *.y*ml) && (-z ${options[*]} || -z ${SLURM_JOB_ID:-}) ]] || refuse 64 "no CONFIG${1:+ where it belongs: ${options[*]} $*}" \
  "SCRIPT [sbatch options, each one word: --nodes=4] CONFIG [section.key=value ...], or sbatch [options] SCRIPT CONFIG ..."
[[ ${MAX_REQUEUES:=20} =~ ^[0-9]+$ ]] || refuse 64 "MAX_REQUEUES=$MAX_REQUEUES is not a number" "MAX_REQUEUES=20"
[[ -f $image ]] || refuse 66 "no image at $image, seen from $PWD" "cd to its folder, or IMAGE=/path/train.sif"
readonly lines=${2:-} task=${SLURM_ARRAY_TASK_ID:-$((! ${SLURM_JOB_ID:-0}))} # run directly: the first line is checked
[[ -f $lines && -s $lines ]] || refuse 66 "no file of overrides at '$lines'" "write one line of section.key=value words for each training"
options=(--array="1-$(grep -c '' <"$lines")" "${options[@]}") name=${lines##*/}
words=$(sed "$task!d; s/\r$//" <"$lines" | xargs -r printf '%s\n' | grep .) ||
  refuse 64 "$lines has no line '$task' that can be read" "sbatch ${options[0]}, one task per line; quotes as in a shell"
mapfile -t words <<<"$words"; [[ " ${words[*]%%=*} " == *" run.name "* ]] || words+=("run.name=${name%.*}-$task")
common=(); for word in "${@:3}"; do # a line's value for a key counts, not the one for all lines
  [[ " ${words[*]%%=*} " == *" ${word%%=*} "* ]] || common+=("$word")
done
set -- "$1" "${common[@]}" "${words[@]}"
readonly step=(apptainer exec --nv "$image" train); unset SBATCH_GPUS_PER_NODE # the site's, for whole nodes: it beats #SBATCH
# From here on the same in every script.
[[ ${REQUIRE_SIGNED:-0} == 0 ]] || apptainer verify --local ${VERIFY_KEY:+--key "$VERIFY_KEY"} "$image" ||
  refuse 77 "$image is not signed with a key that is trusted here" "sign it, or import the key: docs/image.md"
[[ -n ${SLURM_JOB_ID:-} ]] || # not in a job: check, then submit
  { apptainer exec "$image" train check --config "$@"; exec sbatch "${options[@]}" "$0" "${given[@]}"; }
file=$(readlink -f "$image") digest=$(cat "$file.sha256" 2>/dev/null || true) # 3 GB take seconds: once for each file
[[ $digest =~ ^[0-9a-f]{64} && -z $(find "$file" -cnewer "$file.sha256") ]] || # ctime shows one moved here
  digest=$(sha256sum <"$file" | tee "$file.sha256" 2>/dev/null) || true # the folder may be read-only
export SLURM_EXPORT_ENV=ALL ENTRYPOINT_IMAGE_DIGEST=sha256:${digest%% *} # without ALL, `sbatch --export=NONE` keeps PATH from srun
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}; echo "image $image $ENTRYPOINT_IMAGE_DIGEST" # srun 22.05 forgets the CPUs
ended=0; trap 'ended=1' TERM; trap : USR1 USR2 # Slurm signals the ranks itself. TERM to this shell: cancelled or preempted
folder=$(apptainer exec "$image" train where --config "$@"); left() { stat -c '%.9Z %i:%n' "$folder"/errors/{exit,{node,rank}-*}.json 2>/dev/null || true; }
before=$(left); srun --kill-on-bad-exit=1 "${step[@]}" --config "$@" & # what another start left stays: it may be training there
while code=0; wait $! || code=$?; kill -0 $! 2>/dev/null; do :; done # wait also returns when a signal arrives
mapfile -t new < <(left | grep -vxFe "$before" | cut -d: -f2-) # srun hides codes (who leaves first gets the others killed): the run's own word counts
said=$(sed -n 's/.*"code": *\([0-9]*\).*/\1/p' -- /dev/null "${new[@]/#"$folder"\/errors\/rank-*/\/dev\/null}" | head -n 1) || true; ((code == 73)) || code=${said:-$code}
if [[ ! $code =~ ^(69|75|78|91)$ ]] || ((ended)); then exit "$code"; fi
((${SLURM_RESTART_COUNT:-0} < 10#$MAX_REQUEUES)) || { echo "exit code $code: not requeued, MAX_REQUEUES=$MAX_REQUEUES"; exit "$code"; }
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID} # the number alone may mean the array
bad=$(sed -n '/"code": 78/,/"host"/s/.*"host": "\([^".]*\).*/\1/p' -- /dev/null "${new[@]/#"$folder"\/errors\/exit.json/\/dev\/null}" | sort -u | paste -sd,) || true
trap '' TERM; scontrol requeue "$job" || exit "$code" # --no-requeue, say; else it ends this shell too
echo "exit code $code: requeued, start $((${SLURM_RESTART_COUNT:-0} + 2))${bad:+, not on $bad}"
[[ -z $bad ]] || scontrol update JobId="$job" ExcNodeList="$(squeue -h -j "$job" -o %x | sed -n 's/.$/&,/p')$bad" # while it waits
exit "$code"
