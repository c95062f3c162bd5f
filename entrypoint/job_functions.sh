# shellcheck shell=bash
# Functions of the job scripts in launch/, which read them out of the image:
#   functions=$(apptainer exec "$image" entrypoint job-functions) && eval "$functions"
# They run on the host, where sbatch and srun are, and use the script's variable `image`.
: "${image:?}"

# fail CODE MESSAGE FIX
fail() { printf 'ERROR[%s] %s\n  fix: %s\n' "$@" >&2; exit "$1"; }

# prepare_job CONFIG [section.key=value ...]: set `train_args`, the arguments for `train`, and what
# Slurm and Apptainer need.
prepare_job() {
  _split_words "$@"
  train_args=(--config "${words[@]}")
  if [[ ! ${SLURM_JOB_ID:-} ]]; then _check && _submit; fi
  _begin
}

# prepare_sweep CONFIG FILE [section.key=value ...]: the same for an array job, whose task N trains
# with the settings in line N of FILE.
prepare_sweep() {
  _split_words "$@"
  local -r file=${words[1]:-}
  [[ -f $file && -s $file ]] ||
    fail 66 "no file of overrides at '$file'" "write one line of section.key=value words per run"
  local task
  local -r lines=$(grep -c '' <"$file")
  if [[ ! ${SLURM_JOB_ID:-} ]]; then
    for ((task = 1; task <= lines; task++)); do _read_line && _check; done
    _submit --array="1-$lines"
  fi
  task=${SLURM_ARRAY_TASK_ID:-}
  [[ $task ]] || fail 64 "this is no array job: which line of $file is meant?" "sbatch --array=1-$lines ..."
  _read_line
  _begin
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
  local code nodes='' job
  # Whoever cancelled the job does not want it back; a preempted job is requeued by Slurm.
  if ! may_start_again "$1" || [[ $received_term == yes ]]; then exit "$code"; fi
  local reason=''
  if ((${SLURM_RESTART_COUNT:-0} >= 10#$MAX_REQUEUES)); then reason=MAX_REQUEUES=$MAX_REQUEUES; fi
  if [[ $interactive == yes ]]; then reason="as your shell is the job. The same command continues"; fi
  if [[ $reason ]]; then echo "exit code $code: not requeued, $reason" && exit "$code"; fi

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

# _split_words WORD ...: set `words`, from the configuration on, and `sbatch_options` before it.
_split_words() {
  cd -P . || exit # Apptainer binds no folder that was reached through a link
  local -r typed=$*
  sbatch_options=()
  while [[ ${1:-} == --config || (! ${SLURM_JOB_ID:-} && ${1:-} == -*) ]]; do
    [[ $1 == --config ]] || sbatch_options+=("$1")
    shift
  done
  words=("$@")
  if [[ ! -f ${1:-} && ${1:-} != *.y*ml ]]; then
    fail 64 "no CONFIG${typed:+ where it belongs: $typed}" \
      "sbatch [options] SCRIPT CONFIG [section.key=value ...]"
  fi
}

# Set `train_args` for line `task` of a sweep's `file`.
_read_line() {
  # xargs splits the line and removes quotes as a shell does, and runs nothing.
  local line name=${file##*/} word
  line=$(sed "$task!d; s/\r$//" <"$file" | xargs -r printf '%s\n' | grep .) ||
    fail 64 "$file has no line '$task' that can be read" \
      "sbatch --array=1-$lines, one task per line; quotes as in a shell"
  mapfile -t line <<<"$line"
  _sets_key run.name "${line[@]}" || line+=("run.name=${name%.*}-$task")

  train_args=(--config "${words[0]}")
  for word in "${words[@]:2}"; do # the line wins over what is given for all lines
    _sets_key "${word%%=*}" "${line[@]}" || train_args+=("$word")
  done
  train_args+=("${line[@]}")
}

# _sets_key KEY WORD ...: whether one of the words is KEY=...
_sets_key() {
  local -r key=$1
  shift
  [[ " ${*%%=*} " == *" $key "* ]]
}

# _check and _submit [OPTION ...] go with the next release, and with them `sbatch_options` and what
# calls these three: a script that is typed on the login node checks its configuration (for this
# machine) and submits itself.
_check() { apptainer exec "$image" train check "${train_args[@]}" || exit; }
_submit() {
  local -r command=(sbatch "$@" "${sbatch_options[@]}" "$0" "${words[@]}")
  echo "note: in the next release no script submits itself. Type: $(printf '%q ' "${command[@]}")"
  exec "${command[@]}"
}

_begin() {
  code=0 # of srun, unless the script sets it
  [[ ${MAX_REQUEUES:=20} =~ ^[0-9]+$ ]] ||
    fail 64 "MAX_REQUEUES=$MAX_REQUEUES is not a number" "MAX_REQUEUES=20"
  _use_job_record
  ENTRYPOINT_IMAGE_DIGEST=$(_image_digest)
  export ENTRYPOINT_IMAGE_DIGEST
  echo "image $image $ENTRYPOINT_IMAGE_DIGEST"

  # Slurm sends the signals to the ranks itself; this shell waits for srun and goes on after it.
  received_term=no
  trap 'received_term=yes' TERM
  trap : USR1 USR2

  watch_run "${train_args[@]}"
}

# What srun takes from its environment as options for CPUs, memory, GPUs and tasks. sbatch passes on
# what a shell in another job has (srun --pty, salloc), and nothing tells it from this job's own.
# Without these srun gives the tasks all that the job has.
# Source: srun(1) of Slurm 22.05 to 26.05, INPUT ENVIRONMENT VARIABLES. The others there say how srun
# prints and waits, or are set for each job.
srun_amounts=(SLURM_CPUS_PER_{GPU,TASK} SRUN_CPUS_PER_TASK SLURM_GPUS SLURM_GRES SLURM_HINT
  SLURM_GPUS_PER_{NODE,SOCKET,TASK} SLURM_MEM_PER_{CPU,GPU,NODE} SLURM_THREADS_PER_CORE
  SLURM_TRES_PER_TASK)
srun_places=(SLURM_CPU_BIND{,_LIST,_TYPE,_VERBOSE} SLURM_CPU_FREQ_REQ SLURM_{CORE,THREAD}_SPEC
  SLURM_DISTRIBUTION SLURM_DIST_PLANESIZE SLURM_EXACT SLURM_EXCLUSIVE SLURM_GPU_{BIND,FREQ}
  SLURM_GRES_FLAGS SLURM_MEM_BIND{,_LIST,_PREFER,_SORT,_TYPE,_VERBOSE} SLURM_NCORES_PER_SOCKET
  SLURM_NSOCKETS_PER_NODE SLURM_NTASKS_PER_{CORE,GPU,SOCKET,TRES} SLURM_OVERCOMMIT SLURM_TRES_BIND)

# Leave srun the numbers that Slurm's record of this job has, and no others. Set `interactive`:
# whether the job is a shell in which this script was typed.
_use_job_record() {
  local record name removed='' cpus tasks_per_node threads
  record=$(scontrol show job --oneliner "$SLURM_JOB_ID" 2>/dev/null) || true
  interactive=no
  if [[ -t 0 || $record == *" BatchFlag=0 "* ]]; then
    interactive=yes
    echo "note: this trains in job $SLURM_JOB_ID, which is your shell, and its #SBATCH lines do not" \
      "count. To submit it: sbatch $0 ${words[*]}"
  fi

  cpus=$(_read_record ' CPUs/Task=([0-9]+) ' "${SLURM_CPUS_PER_TASK:-1}")
  for name in "${srun_places[@]}"; do
    if [[ -v $name && $name != *_BIND_* ]]; then removed+=" $name=${!name}"; fi
  done
  tasks_per_node=$(_read_record ' NtasksPerN:B:S:C=([0-9]+):' "${SLURM_NTASKS_PER_NODE:-0}")
  unset SLURM_NTASKS_PER_NODE "${srun_amounts[@]}" "${srun_places[@]}" SRUN_EXPORT_ENV
  if [[ $removed ]]; then
    echo "note: srun is not given what another job or step may have set:$removed." \
      "If you mean it, write the option behind srun in the job script"
  fi

  export PATH SLURM_EXPORT_ENV=ALL # the tasks of sbatch --export=NIL and NONE would have no PATH
  export SLURM_OVERLAP=1           # or srun waits for the step in which this script was typed
  if ((cpus > 1)); then            # without -c the tasks divide the job's CPUs
    export SLURM_CPUS_PER_TASK=$cpus SRUN_CPUS_PER_TASK=$cpus # 22.05 reads only the second
  fi
  threads=$(_read_record ' ReqB:S:C:T=[^ ]*:([0-9]+) ' '')
  if [[ $threads ]]; then # --hint=nomultithread, with which srun binds tasks
    export SLURM_THREADS_PER_CORE=$threads
  elif ((cpus > 1 && tasks_per_node != 1)); then
    export SLURM_CPU_BIND=cores # else a step whose tasks do not fill its cores is not bound
  fi
  if [[ ${SLURM_NTASKS:-} ]]; then # a step's, in `srun --pty`
    SLURM_NTASKS=$(_read_record ' NumTasks=([0-9]+) ' "$SLURM_NTASKS") SLURM_NPROCS=$SLURM_NTASKS
    export SLURM_NTASKS SLURM_NPROCS
  fi
  if ((tasks_per_node)); then export SLURM_NTASKS_PER_NODE=$tasks_per_node; fi
}

# _read_record PATTERN DEFAULT: print what the pattern's group matches in `record`.
_read_record() {
  if [[ $record =~ $1 ]]; then echo "${BASH_REMATCH[1]}"; else echo "$2"; fi
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
