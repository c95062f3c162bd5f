# shellcheck shell=bash
# Functions of the job scripts in launch/, which read them out of the image:
#   source <(apptainer exec "$image" entrypoint job-functions)
# They run on the host, where sbatch and srun are, and use the script's variable `image`. Slurm's
# scripts also have the function `fail CODE MESSAGE FIX`.
: "${image:?}"

# prepare_job [sbatch options] CONFIG [section.key=value ...]
# Outside a job: check the configuration, submit this script with the same words, and exit.
# In a job: set `train_args`, the arguments for `train`, and what Slurm and Apptainer need.
prepare_job() {
  _split_words "$@"
  train_args=(--config "${words[@]}")
  _submit_or_begin
}

# prepare_sweep [sbatch options] CONFIG FILE [section.key=value ...]
# The same for an array job: task N trains with the settings in line N of FILE.
prepare_sweep() {
  _split_words "$@"
  local -r file=${words[1]:-} task=${SLURM_ARRAY_TASK_ID:-$((! ${SLURM_JOB_ID:-0}))}
  [[ -f $file && -s $file ]] ||
    fail 66 "no file of overrides at '$file'" "write one line of section.key=value words per run"
  sbatch_options=(--array="1-$(grep -c '' <"$file")" "${sbatch_options[@]}")

  # xargs splits the line and removes quotes as a shell does, and runs nothing.
  local line name=${file##*/} word
  line=$(sed "$task!d; s/\r$//" <"$file" | xargs -r printf '%s\n' | grep .) ||
    fail 64 "$file has no line '$task' that can be read" \
      "sbatch ${sbatch_options[0]}, one task per line; quotes as in a shell"
  mapfile -t line <<<"$line"
  _sets_key run.name "${line[@]}" || line+=("run.name=${name%.*}-$task")

  train_args=(--config "${words[0]}")
  for word in "${words[@]:2}"; do # the line wins over what is given for all lines
    _sets_key "${word%%=*}" "${line[@]}" || train_args+=("$word")
  done
  train_args+=("${line[@]}")
  _submit_or_begin
}

# watch_run --config CONFIG [section.key=value ...]: note which files say how starts of this run
# ended. They were left by an earlier start, or by another one that still trains.
watch_run() {
  run_folder=$(apptainer exec "$image" train where "$@")
  error_files_before=$(_list_error_files)
}

# may_start_again CODE: whether the next start may succeed. Sets `code` to the run's exit code, and
# `nodes` to those to leave out. CODE is the launcher's, which is not always the run's: srun kills
# the other ranks when one leaves, and MPICH's mpiexec ORs their codes. The files that this start
# left in the run's errors/ say why it ended.
may_start_again() {
  local decision files
  mapfile -t files < <(_list_error_files | grep -vxFe "$error_files_before" | cut -d' ' -f3-)
  read -r code decision nodes < <(apptainer exec "$image" entrypoint requeue "$1" -- "${files[@]}") ||
    { code=$1 decision=exit; }
  [[ $decision == requeue ]]
}

# requeue_or_exit CODE: exit with the run's exit code; requeue the job first if the next start may
# succeed. CODE is srun's.
requeue_or_exit() {
  local code nodes='' job again=no
  if may_start_again "$1"; then again=yes; fi

  # Whoever cancelled the job does not want it back; a preempted job is requeued by Slurm.
  if [[ $again == no || $received_term == yes ]]; then exit "$code"; fi
  if ((${SLURM_RESTART_COUNT:-0} >= 10#$MAX_REQUEUES)); then
    echo "exit code $code: not requeued, MAX_REQUEUES=$MAX_REQUEUES"
    exit "$code"
  fi

  job=$SLURM_JOB_ID # in an array, this number alone may mean the whole array
  if [[ ${SLURM_ARRAY_TASK_ID:-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
  trap '' TERM # a requeue ends this shell too
  scontrol requeue "$job" || exit "$code"
  local -r start=$((${SLURM_RESTART_COUNT:-0} + 2))
  echo "exit code $code: requeued, start $start${nodes:+, not on $nodes}"
  if [[ $nodes ]]; then # the job waits now, so that its nodes may be changed
    local excluded
    excluded=$(squeue --noheader --jobs "$job" --format %x)
    scontrol update JobId="$job" ExcNodeList="${excluded:+$excluded,}$nodes"
  fi
  exit "$code"
}

# _split_words WORD ...: set `sbatch_options` (before the configuration) and `words` (from it on).
_split_words() {
  cd -P . || exit # Apptainer binds no folder that was reached through a link
  sbatch_options=()
  while [[ ${1:-} == -* ]]; do
    [[ $1 == --config ]] || sbatch_options+=("$1")
    shift
  done
  words=("$@")
  local -r usage="SCRIPT [sbatch options, each one word: --nodes=4] CONFIG [section.key=value ...]"
  if [[ ! -f ${1:-} && ${1:-} != *.y*ml ]]; then
    fail 64 "no CONFIG${1:+ where it belongs: ${sbatch_options[*]} $*}" "$usage"
  fi
  if [[ ${SLURM_JOB_ID:-} && ${sbatch_options[*]} ]]; then
    fail 64 "sbatch options after the script: ${sbatch_options[*]}" \
      "sbatch ${sbatch_options[*]} SCRIPT CONFIG ..."
  fi
}

# _sets_key KEY WORD ...: whether one of the words is KEY=...
_sets_key() {
  local word
  for word in "${@:2}"; do
    if [[ ${word%%=*} == "$1" ]]; then return 0; fi
  done
  return 1
}

_submit_or_begin() {
  [[ ${MAX_REQUEUES:=20} =~ ^[0-9]+$ ]] ||
    fail 64 "MAX_REQUEUES=$MAX_REQUEUES is not a number" "MAX_REQUEUES=20"
  if [[ -z ${SLURM_JOB_ID:-} ]]; then
    apptainer exec "$image" train check "${train_args[@]}"
    exec sbatch "${sbatch_options[@]}" "$0" "${words[@]}"
  fi

  export SLURM_EXPORT_ENV=ALL # with `sbatch --export=NONE`, srun would not pass on even PATH
  export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # since Slurm 22.05 srun needs it said again
  ENTRYPOINT_IMAGE_DIGEST=$(_image_digest)
  export ENTRYPOINT_IMAGE_DIGEST
  echo "image $image $ENTRYPOINT_IMAGE_DIGEST"

  # Slurm sends the signals to the ranks itself; this shell waits for srun and goes on after it.
  received_term=no
  trap 'received_term=yes' TERM
  trap : USR1 USR2

  watch_run "${train_args[@]}"
}

# Print the image's sha256. For 3 GB that takes seconds, so it is kept beside the image.
_image_digest() {
  local file digest new
  file=$(readlink -f "$image")
  digest=$(cat "$file.sha256" 2>/dev/null) || true
  # -cnewer: a file that was moved here keeps its time of modification, but not its ctime
  if [[ ! $digest =~ ^[0-9a-f]{64} || -n $(find "$file" -cnewer "$file.sha256") ]]; then
    digest=$(sha256sum <"$file")
    if new=$(mktemp "$file.XXXXXXXX" 2>/dev/null); then # not in a read-only folder; a rename follows no link
      if ! { echo "$digest" >"$new" && chmod a+r "$new" && mv -fT "$new" "$file.sha256"; } 2>/dev/null; then
        rm -f "$new"
      fi
    fi
  fi
  echo "sha256:${digest%% *}"
}

# Print time of change, inode and path of each file that says how a start ended.
_list_error_files() {
  stat --format '%.9Z %i %n' "$run_folder"/errors/{exit,node-*,rank-*}.json 2>/dev/null || true
}
