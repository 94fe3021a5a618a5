#!/bin/bash
# Make localhost/mlserver:1, a real MLServer with the models of tests/upstreams, from Debian's
# Python and the hashed lock of that folder. REST is at 8080, gRPC at 8081.
#
#   mlserver-image.sh FILE.tar
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
upstreams=$(cd "$here/../../upstreams" && pwd)
container=$(buildah from localhost/debian-python:1)
trap 'buildah rm "$container" >/dev/null' EXIT
# As in build-image.sh: this machine's pip settings and certificates, of which nothing stays.
options=(--isolation chroot --network host)
options+=(--volume /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro)
[ -e /etc/pip.conf ] && options+=(--volume /etc/pip.conf:/etc/pip.conf:ro)
buildah copy --quiet "$container" "$upstreams/requirements.lock" /opt/
buildah copy --quiet "$container" "$upstreams/engines" /opt/engines
buildah copy --quiet "$container" "$upstreams/models/mlserver" /opt/models
buildah run "${options[@]}" "$container" -- sh -ec '
    python3 -m venv /opt/mlserver
    /opt/mlserver/bin/pip install --quiet --disable-pip-version-check --no-cache-dir \
        --only-binary :all: --require-hashes -r /opt/requirements.lock
    mkdir /opt/prepared
    /opt/mlserver/bin/python -P /opt/engines/prepare.py /opt/engines/modzy_model.proto /opt/prepared
    mv /opt/prepared/models/digits.joblib /opt/models/digits/model.joblib
    chmod -R go+rX /opt'
mounted=$(buildah mount "$container")
cat >"$mounted/opt/models/settings.json" <<JSON
{"host": "0.0.0.0", "http_port": 8080, "grpc_port": 8081, "metrics_endpoint": null,
 "parallel_workers": 0, "debug": false}
JSON
buildah umount "$container" >/dev/null
buildah config --env PYTHONPATH=/opt/engines --env PYTHONDONTWRITEBYTECODE=1 --env HOME=/tmp \
    --user 10002:10002 --workingdir /tmp \
    --entrypoint '["/opt/mlserver/bin/mlserver", "start", "/opt/models"]' "$container"
buildah commit --quiet "$container" localhost/mlserver:1
rm -f "$1.new"
buildah push --quiet localhost/mlserver:1 "docker-archive:$1.new:localhost/mlserver:1"
mv "$1.new" "$1"
