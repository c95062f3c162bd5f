#!/usr/bin/env bash
# Train on this machine with docker or podman:  launch/workstation.sh [N] [--config CONFIG] [section.key=value ...]
# N: how many GPUs (default: all, or those of CUDA_VISIBLE_DEVICES; 0: the CPU). The current folder is the working directory inside.
# BINDS=FOLDER[:PLACE[:ro]],... shows others too, such as the data. Also IMAGE (train), ENGINE (docker, podman), SHM (half the memory).
set -euo pipefail; set -f # no word here is a pattern
image=${IMAGE:-train} count=${1:-} info='' list='' engine='' gpus=() access=()
die() { printf 'ERROR[%s] %s; fix: %s\n' "$@" >&2; exit "$1"; }
case $count in
  '' | --* | *=* | check | where | eval | predict | export | data | bench | report) count=all ;;
  *[!0-9]* | ?????*) die 64 "'$count' is not a number of GPUs" "launch/workstation.sh [N] [--config CONFIG] [section.key=value ...]" ;;
  *) count=$((10#$count)); shift ;;
esac
[[ $count == 0 ]] || ! command -v nvidia-smi >/dev/null || list=$(nvidia-smi -L 2>&1) ||
  die 78 "nvidia-smi fails: ${list%%$'\n'*}" "mend the driver, or use the CPU: launch/workstation.sh 0"
mapfile -t gpus < <(sed -nE 's/^GPU ([0-9]+):.*UUID: (GPU-[^)]*).*/\1 \2/p' <<<"$list")
names=${CUDA_VISIBLE_DEVICES-${gpus[*]%% *}} all=("${gpus[@]}") gpus=()
for name in ${names//,/ }; do # an index, or the beginning of a UUID; -1 ends the list
  if [[ $name == -1 || $count == "${#gpus[@]}" ]]; then break; fi
  if [[ $name == MIG-* && $list == *"$name)"* ]]; then gpus+=("$name"); continue; fi
  for gpu in "${all[@]}"; do if [[ $gpu == "$name "* || $gpu == *" $name"* ]]; then gpus+=("${gpu%% *}"); continue 2; fi; done
  die 78 "CUDA_VISIBLE_DEVICES=$names: there is no GPU $name here" "unset it, or take names of nvidia-smi -L"
done
[[ $count == all || $count == "${#gpus[@]}" ]] || die 78 "$count GPUs wanted, ${#gpus[@]} here" "launch/workstation.sh ${#gpus[@]}"
for name in ${ENGINE:-docker podman}; do # the first that answers and has the image: a docker without its daemon does not
  info=$(timeout 20 "$name" info 2>&1) || { ! command -v "$name" >/dev/null || echo "note: $name is here and does not answer" >&2; continue; }
  engine=$name; if [[ $info == *buildahVersion* ]]; then engine=${name/%docker/podman}; fi # the package podman-docker
  if "$name" image inspect "$image" >/dev/null 2>&1; then break; fi
done
[[ $engine ]] || die 69 "no engine answers (${ENGINE:-docker, podman}): ${info##*$'\n'}" "sudo systemctl start docker, or apt-get install podman"
"$engine" image inspect "$image" >/dev/null 2>&1 || die 66 "$engine has no image $image" "make image ENGINE=$engine, or $engine pull IMAGE"
if ((${#gpus[@]} == 0)); then echo "note: on the CPU" >&2; access=(--env ENTRYPOINT_DEVICE=cpu)
elif [[ $engine == *podman ]]; then access=("${gpus[@]/#/--device=nvidia.com/gpu=}")
  nvidia-ctk cdi list 2>/dev/null | grep nvidia.com/gpu= >/dev/null || die 78 "podman finds no GPU: there is no CDI specification" \
    "apt-get install nvidia-container-toolkit; sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
else access=(--gpus "\"device=$(IFS=,; echo "${gpus[*]}")\"")
  # --gpus asks for the hook alone; a runtime by that name is for what else can be asked
  grep -qi nvidia <<<"$info" || command -v nvidia-container-runtime-hook >/dev/null || die 78 "docker finds no GPU: it has neither NVIDIA's runtime nor its hook" \
    "apt-get install nvidia-container-toolkit; sudo nvidia-ctk runtime configure; sudo systemctl restart docker"
fi
# Not --ipc=host: what a killed worker leaves in shared memory is to go with the container. Labels: SELinux's would change your folders.
options=(--rm --stop-timeout 120 --shm-size "${SHM:-$(awk '/MemTotal/ {print int($2 / 2) "k"}' /proc/meminfo)}" --user "$(id -u):$(id -g)"
  --security-opt label=disable --env HOME=/tmp --mount "type=bind,\"source=${PWD//\"/\"\"}\",target=/workspace" --workdir /workspace)
if [[ $engine == *docker && $info == *rootless* ]]; then options+=(--user 0:0)                 # its root is you
elif [[ $engine == *podman && $(id -u) != 0 ]]; then options+=(--userns=keep-id --group-add=keep-groups) # your numbers inside are yours outside
else read -ra groups < <(id -G); options+=("${groups[@]/#/--group-add=}"); fi                  # data may be a group's
while IFS= read -rd, bind; do # a folder that is not there would be made, and a name without / taken for a volume's: both are empty
  from=$(realpath -se "${bind%%:*}") || die 66 "BINDS: there is no folder ${bind%%:*}" "BINDS=FOLDER[:PLACE[:ro]],..."
  place=${bind#"${bind%%:*}"}; options+=(--volume "$from${place:-:$from}")
done < <(printf %s "${BINDS:+$BINDS,}")
for name in $(compgen -e); do if [[ $name == @(ENTRYPOINT|NCCL|OMP)_* ]]; then options+=(--env "$name"); fi; done
if [[ -t 0 && -t 1 ]]; then options+=(--interactive --tty); fi
exec "$engine" run "${options[@]}" "${access[@]}" "$image" train "$@"
