"""From the built environment to /opt/image.json: which versions this image holds."""

import hashlib
import json
import platform
import sys
import tomllib
from pathlib import Path

import torch

if torch.version.cuda is None:  # an index that offers a CPU build must end here, not on a cluster
    sys.exit(f"torch {torch.__version__} is not a CUDA build: look at the package index that pip used")
source, revision, lock = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
facts = {
    "version": tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"],
    "revision": revision,
    "architecture": platform.machine(),
    "python": platform.python_version(),
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "architectures": torch._C._cuda_getArchFlags().split(),  # get_arch_list() is empty without a GPU,
    "lock": lock,
    "lock_sha256": hashlib.sha256((source / lock).read_bytes()).hexdigest(),
}
sys.stdout.write(json.dumps(facts, indent=2) + "\n")
