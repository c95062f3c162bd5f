#!/bin/sh
# Last layer: this project, its commands and its examples, under DEST. A second's work, and all that a change of the code rebuilds.
#
#   project.sh SOURCE DEST [REVISION [LOCK]]
set -eu
source=$1 dest=$2 revision=${3:-unknown} lock=${4:-requirements.lock}
python=/opt/venv/bin/python
site=$dest$("$python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
work=$(mktemp -d)
export TMPDIR="$work" # torch leaves a folder there

# A pure wheel is a zip of what belongs into site-packages; no pip is needed, and the commands are our own.
cp -R "$source/." "$work/source"
(cd "$work/source" && "$python" -I -c 'import setuptools.build_meta as build; build.build_wheel("..")' >/dev/null)
mkdir -p "$site" "$dest/usr/local/bin" "$dest/opt/train-image"
"$python" -I -m zipfile -e "$work"/*.whl "$site"
find "$site/bench" "$site/train" "$site/entrypoint" -exec touch -d 1980-01-01T00:00:00Z {} + # the date is in the bytecode: dependencies.sh
"$python" -I -m compileall -q -s "${dest:-/}" -p / "$site/bench" "$site/train" "$site/entrypoint" # -s: tracebacks and bytecode name where it will lie

cp -R "$source/configs" "$source/launch" "$source/image/start" "$source/image/test" "$dest/opt/train-image/"
# What Apptainer's run-help, test and run --app look for, so that each SIF has them, whatever it is made from.
mkdir -p "$dest/.singularity.d"
cp "$source/image/help" "$dest/.singularity.d/runscript.help"
printf '#!/bin/sh\nexec /opt/train-image/test\n' >"$dest/.singularity.d/test"
for app in train entrypoint; do
  mkdir -p "$dest/scif/apps/$app/scif"
  printf '#!/bin/sh\nexec /usr/bin/tini -s -- %s "$@"\n' "$app" >"$dest/scif/apps/$app/scif/runscript"
  chmod 755 "$dest/scif/apps/$app/scif/runscript"
done
mkdir -p "$dest/opt/train-image/examples" && cp "$source/examples/"*.md "$source/examples/"*.py "$source/examples/"*.yaml "$dest/opt/train-image/examples/"
rm -f "$dest/opt/train-image/launch/site.env" # the builder's own: users copy this folder
cp "$source/image/train" "$source/image/entrypoint" "$source/image/pip" "$dest/usr/local/bin/"
cut -d" " -f1 /opt/train-image/wheels.txt >"$dest/opt/train-image/constraints.txt"
"$python" -I "$source/image/facts.py" "$source" "$revision" "$lock" >"$dest/opt/image.json"
mkdir -p "$dest/etc/profile.d" # a login shell (bash -l) begins with Debian's own PATH
# shellcheck disable=SC2016  # that shell's PATH
echo 'PATH=/opt/venv/bin:$PATH' >"$dest/etc/profile.d/train-image.sh"
# Whatever the builder's umask was.
chmod 755 "$dest/etc" "$dest/etc/profile.d" "$dest/.singularity.d" "$dest/.singularity.d/test"
chmod -R a+rX,go-w "$dest/.singularity.d/runscript.help" "$dest/scif" "$dest/etc/profile.d/train-image.sh" "$dest/opt/train-image" "$dest/opt/image.json" "$site/bench" "$site/train" "$site/entrypoint" "$site"/train_image-*
chmod 755 "$dest/usr/local/bin/train" "$dest/usr/local/bin/entrypoint" "$dest/usr/local/bin/pip" "$dest/opt/train-image/start" "$dest/opt/train-image/test"
rm -rf "$work"
