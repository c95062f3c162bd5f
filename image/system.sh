#!/bin/sh
# First layer: Debian's Python, the compiler and headers that torch.compile needs, an init, the libraries without which NCCL
# does not see InfiniBand, and the user.
set -eu
# shellcheck disable=SC1091  # it is beside this script
. "$(dirname "$0")/site.sh"

apt-get update -q --error-on=any
apt-get install -y -q --no-install-recommends ca-certificates g++ python3 python3-dev tini \
  libibverbs1 ibverbs-providers librdmacm1
tidy

# Nothing here may give more rights than the user started with.
find / -xdev -type f -perm /6000 -exec chmod a-s {} +

# A fixed number, so that a mounted folder can be given to it; its home is the one place that is writable and not mounted.
useradd --uid 1000 --user-group --home-dir /tmp --no-create-home --shell /bin/bash train
chage --lastday 2020-01-01 train # not the day of the build
rm -f /etc/*- # the accounts as they were before: with that day
mkdir -p /workspace
