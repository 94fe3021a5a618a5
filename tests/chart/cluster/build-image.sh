#!/bin/bash
# Build the product's image with buildah, where no container registry is reached:
#
#   build-image.sh FOLDER IMAGE [buildah options...]
#
# pip's settings and the certificates of this machine are mounted for the RUN steps; nothing of
# them stays in the image. `--isolation chroot` and the limits: for machines whose cgroups the
# default runtime refuses.
set -euo pipefail
folder=$1 image=$2
shift 2
mounts=(--volume /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro)
[ -e /etc/pip.conf ] && mounts+=(--volume /etc/pip.conf:/etc/pip.conf:ro)
buildah build --isolation chroot --network host "${mounts[@]}" \
    --build-arg BASE=localhost/debian-python:1 --tag "$image" "$@" "$folder"
