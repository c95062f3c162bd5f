#!/bin/sh
# Second layer: the locked dependencies in /opt/venv. pip comes for this step only and leaves nothing behind.
#
#   dependencies.sh LOCK
set -eu
export DEBIAN_FRONTEND=noninteractive

apt-get update -q
apt-get install -y -q --no-install-recommends python3-pip-whl
python3 -m venv --without-pip /opt/venv
# Bytecode is written afterwards, on all cores: at run time the image is read-only.
set -- "$1" /usr/share/python-wheels/pip-*.whl
/opt/venv/bin/python "$2/pip" install --quiet --no-cache-dir --disable-pip-version-check \
  --root-user-action=ignore --no-compile --only-binary :all: --require-hashes -r "$1"
/opt/venv/bin/python -I -m compileall -q -j 0 /opt/venv/lib >/dev/null || true # some packages carry templates that are not Python
apt-get purge -y -q python3-pip-whl
apt-get clean
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/debconf/*-old

# An index that offers a CPU build (arm64 had one for years) must end here, not on a cluster.
TMPDIR=$(mktemp -d) # torch leaves a folder there; never tidy up /tmp itself, which is the host's under `apptainer build`
export TMPDIR
/opt/venv/bin/python -I -c '
import sys, torch, torchvision
if torch.version.cuda is None:
    sys.exit(f"torch {torch.__version__} is not a CUDA build: look at the package index that pip used")'
rm -rf "$TMPDIR"
