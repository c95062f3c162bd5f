# Sourced by what builds a Debian file system: where this machine gets Debian from, and whom it trusts.
# shellcheck shell=bash

mirror() { # the first Debian archive (not the security one) among the machine's apt sources
  # shellcheck disable=SC2016  # apt expands them
  apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" && !found {print $2; found = 1}'
}

trust_as_here() { # ROOT: where HTTPS goes through a site's own authority, ROOT must know it
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp -L {} "$1/usr/local/share/ca-certificates/" \; 2>/dev/null || true
  chroot "$1" update-ca-certificates
}

in_own_namespaces() { # CMD...: debootstrap mounts /proc inside; a mount namespace of its own takes that away, even after kill -9
  setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --propagation private "$@"
}
