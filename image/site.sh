#!/bin/sh
# Sourced by the steps that download: how Debian and PyPI are reached from this site. Nothing of it stays in the image.
#
#   MIRROR    the place of debian/ and debian-security/, where it is not the one of the base
#   SNAPSHOT  a moment of that archive, such as 20261101T000000Z; without MIRROR, of snapshot.debian.org
#   CA_FILE   an authority to trust besides the base's own; the build secret ca.crt, if there is one
# Proxies are the usual variables: http_proxy, https_proxy, no_proxy.
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
chmod 755 "$site" # apt downloads as a user of its own
export APT_CONFIG="$site/apt.conf" DEBIAN_FRONTEND=noninteractive
: >"$APT_CONFIG"

CA_FILE=${CA_FILE:-/run/secrets/ca.crt}
if [ -e "$CA_FILE" ]; then
  { cat /etc/ssl/certs/ca-certificates.crt 2>/dev/null || true; cat "$CA_FILE"; } >"$site/ca.crt"
  echo "Acquire::https::CAInfo \"$site/ca.crt\";" >>"$APT_CONFIG"
  export PIP_CERT="$site/ca.crt"
fi

if [ -n "${MIRROR:-}${SNAPSHOT:-}" ]; then
  mirror=${MIRROR:-http://snapshot.debian.org/archive}
  mkdir "$site/sources"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    [ -f "$file" ] || continue
    sed -E "s#https?://[^ ]*/(debian|debian-security)/?( |\$)#${mirror%/}/\1/${SNAPSHOT:-}\2#" "$file" >"$site/sources/${file##*/}"
  done
  # Valid-Until: a snapshot is meant to be old.
  printf '%s\n' 'Dir::Etc::sourcelist "/dev/null";' "Dir::Etc::sourceparts \"$site/sources\";" \
    'Acquire::Check-Valid-Until "false";' >>"$APT_CONFIG"
fi

tidy() { # what apt leaves behind, and what would be another in each build
  apt-get clean
  rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache
}
