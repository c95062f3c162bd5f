#!/usr/bin/env bash
# Train on this machine with docker or podman:  launch/workstation.sh [--config CONFIG] [section.key=value ...]
# The current folder is mounted as the working directory, so that paths mean the same inside. IMAGE names the image
# (default: train); ENGINE chooses docker or podman.
set -euo pipefail
readonly image=${IMAGE:-train}
engine=${ENGINE:-$(command -v docker || command -v podman || true)}
[[ -n $engine ]] || { echo "ERROR[69] neither docker nor podman is here; fix: apt-get install podman" >&2; exit 69; }

options=(
  --rm
  --user "$(id -u):$(id -g)"              # what is written belongs to you
  --volume "$PWD:/workspace" --workdir /workspace
  --ipc=host                              # data workers share memory; the default of 64 MB is too small
  --stop-timeout 120                      # docker stop: time to finish the step and save
)
case $(basename "$engine") in
  podman)
    options+=(--security-opt label=disable)
    all=(--device nvidia.com/gpu=all)
    if [[ $(id -u) != 0 ]]; then options+=(--userns=keep-id); fi # rootless: your number inside is yours outside
    ;;
  *) all=(--gpus all) ;;
esac
if nvidia-smi -L >/dev/null 2>&1; then options+=("${all[@]}"); else echo "note: no GPU on this machine" >&2; fi
if [[ -t 0 && -t 1 ]]; then options+=(--interactive --tty); fi
exec "$engine" run "${options[@]}" "$image" train "$@"
