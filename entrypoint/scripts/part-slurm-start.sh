[[ ! ${SITE_ENV:-} && ! -e launch/site.env ]] || source "${SITE_ENV:-launch/site.env}" ||
  { echo "ERROR[64] ${SITE_ENV:-site.env} failed; fix: let its last command succeed" >&2; exit 64; }

set -euo pipefail@NOTICE:@
image=${IMAGE:-@IMAGE:train.sif@} # IMAGE=FILE names another image
[[ ${REQUIRE_SIGNED:-0} == 0 ]] ||
  apptainer verify --local ${VERIFY_KEY:+--key "$VERIFY_KEY"} "$image" ||
  { echo "ERROR[77] $image is not signed; fix: docs/image.md: Sign and verify" >&2; exit 77; }
functions=$(apptainer exec "$image" entrypoint job-functions) || {
  echo "ERROR[78] $image cannot be run on $(uname -n): the lines above say why" >&2
  echo "  fix: IMAGE=FILE; load Apptainer's module here or in launch/site.env" >&2; exit 78; }
eval "$functions" # they come out of the image, so that this script need not change with it
