#!/bin/sh
# Second layer: the locked dependencies in /opt/venv. pip is Debian's, outside of it, and stays for those who need one more package.
#
#   dependencies.sh LOCK
# shellcheck disable=SC1091,SC2154  # site.sh is beside this script, and sets site
set -eu
. "$(dirname "$0")/site.sh"

apt-get update -q --error-on=any
apt-get install -y -q --no-install-recommends python3-pip-whl
python3 -m venv --without-pip /opt/venv
set -- "$1" /usr/share/python-wheels/pip-*.whl
/opt/venv/bin/python "$2/pip" install --quiet --no-cache-dir --disable-pip-version-check --report "$site/report.json" \
  --root-user-action=ignore --no-compile --only-binary :all: --require-hashes -r "$1"
tidy

# Which of the wheels that the lock allows are in this image: one line for each, as in a lock.
mkdir -p /opt/train-image
/opt/venv/bin/python -I "$(dirname "$0")/wheels.py" "$site/report.json" >/opt/train-image/wheels.txt

# Where that package is found, if there is one: last, so that nothing in it replaces what is locked.
/opt/venv/bin/python -I -c '
import pathlib, sysconfig
extra = sysconfig.get_path("purelib", vars={"base": "/opt/extra"})
pathlib.Path(sysconfig.get_path("purelib"), "extra.pth").write_text(f"{extra}\n")'
mkdir /opt/extra

# Bytecode holds the date of its source, which therefore is always the same: the oldest that a zip file knows.
find /opt/venv -exec touch -h -d 1980-01-01T00:00:00Z {} +
# On all cores, and now: at run time the image is read-only.
/opt/venv/bin/python -I -m compileall -q -j 0 /opt/venv/lib >/dev/null || true # some packages carry templates that are not Python
