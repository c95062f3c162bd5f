# The image brings two functions, which read why the ranks ended: launchers mix their exit codes.
functions=$(apptainer exec "$image" entrypoint job-functions) || {
  echo "ERROR[78] $image cannot be run on $(uname -n): the lines above say why" >&2
  echo "  fix: apptainer exec $image entrypoint job-functions, there, until it prints functions" >&2
  exit 78
}
eval "$functions"
watch_run --config "$config"
