#!/bin/bash
# Rows 1-3, 6, 10 and 14 of docs/performance.md on one GPU, in less than 9 minutes and without a network: one table.
#
#   bench/gpu.sh [DIR] [options of python -m bench]
#
# From a checkout, with any python3 that has torch 2.10 or newer, torchvision, Pillow and accelerate
# (PYTHON=/path/to/python3). With SIF=train.sif it measures what the image holds; this folder is
# mounted into it. DIR (bench-gpu) gets bench.json, bench.md and plots. LIMIT_S (480) ends all of it,
# and what was measured until then is shown. The first GPU is taken, or those in
# CUDA_VISIBLE_DEVICES: more of them take longer.
set -euo pipefail

readonly limit=${LIMIT_S:-480}
top=$(dirname "$(dirname "$(readlink -f "$0")")")
out=bench-gpu
if [[ $# -gt 0 && $1 != -* ]]; then out=$1; shift; fi
mkdir -p "$out"
rm -f "$out"/bench.{json,md} # of another time
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0}

if [[ -n ${SIF:-} ]]; then
  # Only this folder: `train` and `entrypoint` are the image's.
  measure=(apptainer exec --nv --bind "$top/bench:/mnt/bench:ro" --env PYTHONPATH=/mnt)
  measure+=("$SIF" python -m bench)
else
  python=$(command -v "${PYTHON:-python3}") || { printf 'ERROR[66] no %s\n  fix: PYTHON=/path/to/python3, or SIF=train.sif\n' "${PYTHON:-python3}" >&2; exit 66; }
  [[ $python == /* ]] || python=$PWD/$python # not resolved: a virtual environment is known by its link
  cd -P "$(dirname "$out")" && out=$PWD/$(basename "$out")
  export PYTHONPATH=$top${PYTHONPATH:+:$PYTHONPATH}
  timeout "$limit" "$python" - <<'CHECK'
import sys
wanted = ["torch", "accelerate", "numpy", "safetensors", "torchvision", "PIL", "yaml", "tqdm", "pynvml"]
missing = []
for name in wanted:
    try:
        __import__(name)
    except ImportError:
        missing.append(name)
torch = sys.modules.get("torch")
if torch and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
    missing.append(f"torch 2.10 (has {torch.__version__})")
if missing:
    print(f"ERROR[66] this python lacks {', '.join(missing)}\n  fix: PYTHON=/path/to/python3, or SIF=train.sif", file=sys.stderr)
    sys.exit(66)
CHECK
  measure=("$python" -m bench)
fi

code=0
left=$((limit > SECONDS ? limit - SECONDS : 1)) # the imports above may have taken long
# What needs the riskiest peer comes last.
timeout --kill-after 20 "$left" "${measure[@]}" step,scaling --device cuda --rows 3,6,10,1 --output "$out" "$@" || code=$?
if [[ $code == 124 ]]; then
  echo "stopped after $limit s: what was measured until then is in $out" >&2
  if [[ -e $out/bench.md ]]; then cat "$out/bench.md"; fi
fi
exit "$code"
