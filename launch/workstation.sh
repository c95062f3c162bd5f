#!/usr/bin/env bash
# Train on this machine with docker or podman.
#   launch/workstation.sh [N] [--config CONFIG] [section.key=value ...]
#
# N: number of GPUs (default: all, or those of CUDA_VISIBLE_DEVICES; 0: the CPU). The current folder
# is the working directory in the container. Variables:
#   BINDS=FOLDER[:PLACE[:ro]],...  more folders to show, such as the data
#   IMAGE (train), ENGINE (docker, podman), SHM (shared memory; half of the machine's memory)
set -euo pipefail
set -f # no word here is a pattern

fail() { printf 'ERROR[%s] %s; fix: %s\n' "$@" >&2; exit "$1"; }

image=${IMAGE:-train} count=${1:-}
case $count in
  '' | --* | *=* | check | where | find-lr | eval | predict | export) count=all ;;
  data | weights | bench | report) count=all ;;
  *[!0-9]* | ?????*)
    fail 64 "'$count' is not a number of GPUs" \
      "launch/workstation.sh [N] [--config CONFIG] [section.key=value ...]" ;;
  *) count=$((10#$count)); shift ;;
esac

# The machine's GPUs, as "INDEX UUID".
list=''
if [[ $count != 0 ]] && command -v nvidia-smi >/dev/null; then
  list=$(nvidia-smi -L 2>&1) ||
    fail 78 "nvidia-smi fails: ${list%%$'\n'*}" \
      "mend the driver, or use the CPU: launch/workstation.sh 0"
fi
mapfile -t all < <(sed -nE 's/^GPU ([0-9]+):.*UUID: (GPU-[^)]*).*/\1 \2/p' <<<"$list")

# Those to use. A name is an index, the beginning of a UUID or a MIG device; -1 ends the list.
names=${CUDA_VISIBLE_DEVICES-${all[*]%% *}}
gpus=()
for name in ${names//,/ }; do
  if [[ $name == -1 || $count == "${#gpus[@]}" ]]; then break; fi
  if [[ $name == MIG-* && $list == *"$name)"* ]]; then gpus+=("$name"); continue; fi
  for gpu in "${all[@]}"; do
    if [[ $gpu == "$name "* || $gpu == *" $name"* ]]; then gpus+=("${gpu%% *}"); continue 2; fi
  done
  fail 78 "CUDA_VISIBLE_DEVICES=$names: there is no GPU $name here" \
    "unset it, or take names of nvidia-smi -L"
done
[[ $count == all || $count == "${#gpus[@]}" ]] ||
  fail 78 "$count GPUs wanted, ${#gpus[@]} here" "launch/workstation.sh ${#gpus[@]}"

# The first engine that answers and has the image; a docker whose daemon is down does not answer.
engine='' info=''
for name in ${ENGINE:-docker podman}; do
  if ! info=$(timeout 20 "$name" info 2>&1); then
    ! command -v "$name" >/dev/null || echo "note: $name is here and does not answer" >&2
    continue
  fi
  engine=$name
  # The package podman-docker installs podman under the name docker.
  if [[ $info == *buildahVersion* ]]; then engine=${name/%docker/podman}; fi
  if "$name" image inspect "$image" >/dev/null 2>&1; then break; fi
done
[[ $engine ]] ||
  fail 69 "no engine answers (${ENGINE:-docker, podman}): ${info##*$'\n'}" \
    "sudo systemctl start docker, or apt-get install podman"
"$engine" image inspect "$image" >/dev/null 2>&1 ||
  fail 66 "$engine has no image $image" "make image ENGINE=$engine, or $engine pull IMAGE"

# How the engine gives GPUs to a container.
toolkit="apt-get install nvidia-container-toolkit; sudo nvidia-ctk"
if ((${#gpus[@]} == 0)); then
  echo "note: on the CPU" >&2
  access=(--env ENTRYPOINT_DEVICE=cpu)
elif [[ $engine == *podman ]]; then
  access=("${gpus[@]/#/--device=nvidia.com/gpu=}")
  nvidia-ctk cdi list 2>/dev/null | grep nvidia.com/gpu= >/dev/null ||
    fail 78 "podman finds no GPU: there is no CDI specification" \
      "$toolkit cdi generate --output=/etc/cdi/nvidia.yaml"
else
  access=(--gpus "\"device=$(IFS=,; echo "${gpus[*]}")\"")
  # --gpus needs only NVIDIA's hook; `docker info` names a runtime, if one is configured as well.
  grep -qi nvidia <<<"$info" || command -v nvidia-container-runtime-hook >/dev/null ||
    fail 78 "docker finds no GPU: it has neither NVIDIA's runtime nor its hook" \
      "$toolkit runtime configure; sudo systemctl restart docker"
fi

# Not --ipc=host: shared memory of a killed worker must go with its container. No SELinux label: it
# would change your folders.
shm=${SHM:-$(awk '/MemTotal/ {print int($2 / 2) "k"}' /proc/meminfo)}
options=(--rm --stop-timeout 120 --shm-size "$shm" --user "$(id -u):$(id -g)"
  --security-opt label=disable --env HOME=/tmp
  --mount "type=bind,\"source=${PWD//\"/\"\"}\",target=/workspace" --workdir /workspace)
if [[ $engine == *docker && $info == *rootless* ]]; then
  options+=(--user 0:0) # root in a rootless docker is you
elif [[ $engine == *podman && $(id -u) != 0 ]]; then
  options+=(--userns=keep-id --group-add=keep-groups) # your user and groups, inside as outside
else
  read -ra groups < <(id -G) # the data may be readable for one of your groups only
  options+=("${groups[@]/#/--group-add=}")
fi
declare -A places=(["$PWD"]=. [/workspace]=. [/tmp]=.) # what is mounted, or must not be covered
while IFS= read -rd, bind; do
  # The engine would create a missing folder, and take a name without a slash for a volume.
  folder=$(realpath -se "${bind%%:*}") ||
    fail 66 "BINDS: there is no folder ${bind%%:*}" "BINDS=FOLDER[:PLACE[:ro]],..."
  place=${bind#"${bind%%:*}"}
  options+=(--volume "$folder${place:-:$folder}")
  place=${place:-:$folder} place=${place#:}
  places[${place%%:*}]=BINDS
done < <(printf %s "${BINDS:+$BINDS,}")
# What docs/reference.md says to set, and proxies. A file or folder that such a variable names is
# shown at the same path, unless BINDS shows one there.
for name in $(compgen -e); do
  case $name in
    ENTRYPOINT_* | MASTER_* | CUDA_COMPAT | NCCL_* | GLOO_* | OMP_* | GOMP_* | NO_COLOR | FAULT) ;;
    TORCH_* | TORCHINDUCTOR_* | TRITON_* | KINETO_* | HF_* | XDG_CACHE_HOME | MPLCONFIGDIR) ;;
    WANDB_* | MLFLOW_* | http*_proxy | ftp_proxy | all_proxy | no_proxy | HTTP*_PROXY) ;;
    FTP_PROXY | ALL_PROXY | NO_PROXY | SSL_CERT_FILE | SSL_CERT_DIR | *_CA_BUNDLE) ;;
    *) continue ;;
  esac
  options+=(--env "$name")
  path=${!name#file://} path=${path#sqlite:///}
  # A database writes files beside its own.
  if [[ ${!name} == sqlite:* ]]; then path=$(dirname "$path"); fi
  if [[ ${!name} == *://localhost* || ${!name} == *://127.* ]]; then
    echo "note: $name names ${!name}: in the container that is the container" >&2
  elif [[ $path == /* && ! -e $path ]]; then
    echo "note: $name names $path, which is not here: the container will not keep it" >&2
  elif [[ $path == /* && -z ${places[$path]:-} ]]; then
    places[$path]=$name
    path=${path//\"/\"\"}
    options+=(--mount "type=bind,\"source=$path\",\"target=$path\"")
  fi
done
if [[ -t 0 && -t 1 ]]; then options+=(--interactive --tty); fi

exec "$engine" run "${options[@]}" "${access[@]}" "$image" train "$@"
