#!/bin/bash
# Rows 1-3, 6, 10 and 14 of docs/performance.md on the GPUs of this machine, in less than 9 minutes and without a network: one table.
#
#   bench/gpu.sh [DIR] [options of train bench]
#
# From a checkout, with any python3 that has torch 2.11 or newer and accelerate; SIF=train.sif measures inside an image. DIR (bench-gpu)
# gets bench.json, bench.md and plots. LIMIT_S (540) ends it.
set -euo pipefail

readonly limit=${LIMIT_S:-540}
top=$(dirname "$(dirname "$(readlink -f "$0")")")
out=bench-gpu
if [[ $# -gt 0 && $1 != -* ]]; then out=$1; shift; fi
mkdir -p "$out"

if [[ -n ${SIF:-} ]]; then
  train=(apptainer exec --nv "$SIF" train)
else
  cd -P "$(dirname "$out")" && out=$PWD/$(basename "$out")
  export PYTHONPATH=$top${PYTHONPATH:+:$PYTHONPATH}
  "${PYTHON:-python3}" - <<'CHECK'
import sys
wanted = ["torch", "accelerate", "numpy", "safetensors", "torchvision", "yaml", "tqdm", "pynvml"]
missing = []
for name in wanted:
    try:
        __import__(name)
    except ImportError:
        missing.append(name)
if missing:
    sys.exit(f"ERROR[66] this python lacks {', '.join(missing)}\n  fix: PYTHON=/path/to/python3, or SIF=train.sif")
CHECK
  train=("${PYTHON:-python3}" -m train)
fi

code=0
timeout --kill-after 20 "$limit" "${train[@]}" bench step,scaling --device cuda --rows 1,3,6,10 --output "$out" "$@" || code=$?
[[ $code != 124 ]] || echo "stopped after $limit s: what was measured until then is in $out" >&2
exit "$code"
