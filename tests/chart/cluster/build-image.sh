#!/bin/bash
# `make image` where no container registry is reached:
#
#   build-image.sh IMAGE
#
# pip's settings and the certificates of this machine are mounted for the RUN steps; nothing of
# them stays in the image. `--isolation chroot` is for machines whose cgroups the default runtime
# refuses.
set -euo pipefail
options="--isolation chroot --network host"
options+=" --volume /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro"
[ -e /etc/pip.conf ] && options+=" --volume /etc/pip.conf:/etc/pip.conf:ro"
cd "$(dirname "$0")/../../.."
id() { buildah images --quiet --no-trunc "$1" 2>/dev/null || true; }
old=$(id "$1")
make --no-print-directory image IMAGE="$1" TOOLS=buildah BASE=localhost/debian-python:1 \
    IMAGE_OPTIONS="$options"
# Each build makes another image: what bore the name before is of no use.
if [ -n "$old" ] && [ "$old" != "$(id "$1")" ]; then
    buildah rmi "$old" >/dev/null 2>&1 || true
fi
