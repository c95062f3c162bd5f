#!/bin/sh
# First layer: Debian's Python, the compiler and headers that torch.compile needs, an init, and the user.
set -eu
export DEBIAN_FRONTEND=noninteractive

apt-get update -q
apt-get install -y -q --no-install-recommends ca-certificates g++ python3 python3-dev tini
apt-get clean
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/debconf/*-old

# Nothing here may give more rights than the user started with.
find / -xdev -type f -perm /6000 -exec chmod a-s {} +

# A fixed number, so that a mounted folder can be given to it; its home is the one place that is writable and not mounted.
useradd --uid 1000 --user-group --home-dir /tmp --no-create-home --shell /bin/bash train
mkdir -p /workspace
