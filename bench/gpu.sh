#!/bin/bash
# What a GPU shows of this program, in less than 9 minutes and without a network (docs/evidence/gpu-first-run.md): a training of
# a few steps, then rows 1-3, 6, 10, 11 and 14 of docs/evidence/performance.md.
#
#   bench/gpu.sh [DIR] [options of python -m bench]
#
# From a checkout, with any python3 that has torch 2.10 or newer, torchvision, Pillow, simplejpeg and accelerate
# (PYTHON=/path/to/python3). With SIF=train.sif it measures what the image holds; this folder is
# mounted into it. DIR (bench-gpu) gets first.txt, bench.json (after each row), bench.md and plots. A row that
# fails says why, and the next one runs. LIMIT_S (480) ends all of it, and what was measured until
# then is shown. The first GPU is taken, or those in CUDA_VISIBLE_DEVICES: more of them take longer.
set -euo pipefail
cd -P . # Apptainer mounts the current folder only if its path has no symbolic link

readonly limit=${LIMIT_S:-480}
top=$(dirname "$(dirname "$(readlink -f "$0")")")
out=bench-gpu
if [[ $# -gt 0 && $1 != -* ]]; then out=$1; shift; fi
mkdir -p "$out"
rm -f "$out"/bench.{json,md} # of another time
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0}

if [[ -n ${SIF:-} ]]; then
  # Only this folder, which holds the peers: `train` and `entrypoint` are the image's. It comes before the image's own `bench`.
  python=(apptainer exec --nv --bind "$top/bench:/mnt/bench:ro" --env PYTHONPATH=/mnt "$SIF" python)
else
  program=$(command -v "${PYTHON:-python3}") || { printf 'ERROR[66] no %s\n  fix: PYTHON=/path/to/python3, or SIF=train.sif\n' "${PYTHON:-python3}" >&2; exit 66; }
  [[ $program == /* ]] || program=$PWD/$program # not resolved: a virtual environment is known by its link
  cd -P "$(dirname "$out")" && out=$PWD/$(basename "$out")
  export PYTHONPATH=$top${PYTHONPATH:+:$PYTHONPATH}
  timeout "$limit" "$program" - <<'CHECK'
import sys
wanted = ["torch", "accelerate", "numpy", "safetensors", "torchvision", "PIL", "yaml", "tqdm", "pynvml", "simplejpeg"]
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
  python=("$program")
fi

# Within half a minute: does it start, and do all ranks keep the same parameters, bit by bit?
rm -rf "$out/first"
code=0
timeout --kill-after 20 120 "${python[@]}" -m train --device cuda run.name=first "run.output_dir=$out" \
  train.max_steps=5 train.check_replicas_every_steps=1 log.every_steps=1 2>&1 | tee "$out/first.txt" || code=$?
if [[ $code == 72 || $code == 78 ]]; then exit "$code"; fi # no GPU, or one that this image does not fit
if [[ $code == 124 ]]; then echo 'the first training took more than 120 s' >&2
elif [[ $code != 0 ]]; then printf 'the first training failed, and %s says why\n' "$out/first.txt" >&2; fi

code=0
left=$((limit > SECONDS ? limit - SECONDS : 1)) # the imports above may have taken long
# Of the rows, that with the riskiest peer comes last. An option is given once: one of the user's own replaces ours.
rows=(--rows "3,6,10,1")
if [[ " $* " == *" --rows"[=\ ]* ]]; then rows=(); fi
timeout --kill-after 20 "$left" "${python[@]}" -m bench step,scaling,checkpoint --device cuda "${rows[@]}" --output "$out" "$@" || code=$?
if [[ $code == 124 ]]; then
  echo "stopped after $limit s: what was measured until then is in $out" >&2
  if [[ -e $out/bench.md ]]; then cat "$out/bench.md"; fi
fi
exit "$code"
