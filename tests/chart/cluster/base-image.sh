#!/bin/bash
# Make localhost/debian-python:1, a small Debian with Python, from Debian's packages: a base for
# the product's Dockerfile where no container registry is reached.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(mktemp --suffix .tar)
trap 'rm -f "$root"' EXIT
"$here/debian.sh" "$root" ca-certificates,python3,python3-venv
container=$(buildah from scratch)
buildah add --quiet "$container" "$root" /
buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
buildah commit --quiet --rm "$container" localhost/debian-python:1
