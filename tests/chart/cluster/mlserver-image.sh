#!/bin/bash
# Make localhost/mlserver:1 as a file that a node takes, once of all that it is made of, and print
# where it is: a real MLServer with the models of tests/upstreams, from Debian's Python and the
# pins of requirements-tools.txt. REST is at 8080, gRPC at 8081.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
upstreams=$(cd "$here/../../upstreams" && pwd)
BIN=${BIN:-$HOME/.cache/inference-store/cluster}
pins() {
    sed -n '/^# \[mlserver\]/,/^$/p' "$upstreams/../../requirements-tools.txt"
}
parts() {
    cat "$here/mlserver-image.sh" <(pins)
    find "$upstreams/engines" "$upstreams/models/mlserver" -type f -not -path '*/__pycache__/*' -print0 |
        sort -z | xargs -0 cat
}
file=$BIN/mlserver-$(parts | sha256sum | cut -c1-12).tar
if [ -e "$file" ]; then
    echo "$file"
    exit
fi
rm -f "$BIN"/mlserver-*.tar*
container=$(buildah from localhost/debian-python:1)
trap 'buildah rm "$container" >/dev/null' EXIT
# As in build-image.sh: this machine's pip settings and certificates, of which nothing stays.
options=(--isolation chroot --network host)
options+=(--volume /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro)
[ -e /etc/pip.conf ] && options+=(--volume /etc/pip.conf:/etc/pip.conf:ro)
pinned=$(mktemp)
pins >"$pinned"
buildah copy --quiet "$container" "$pinned" /opt/requirements.txt >/dev/null
rm "$pinned"
buildah copy --quiet "$container" "$upstreams/engines" /opt/engines >/dev/null
buildah copy --quiet "$container" "$upstreams/models/mlserver" /opt/models >/dev/null
buildah run "${options[@]}" "$container" -- sh -ec '
    python3 -m venv /opt/mlserver
    /opt/mlserver/bin/pip install --quiet --disable-pip-version-check --no-cache-dir \
        --only-binary :all: --no-deps -r /opt/requirements.txt
    mkdir /opt/prepared
    /opt/mlserver/bin/python -P /opt/engines/prepare.py /opt/prepared
    mv /opt/prepared/models/digits.joblib /opt/models/digits/model.joblib
    chmod -R go+rX /opt' >&2
mounted=$(buildah mount "$container")
cat >"$mounted/opt/models/settings.json" <<JSON
{"host": "0.0.0.0", "http_port": 8080, "grpc_port": 8081, "metrics_endpoint": null,
 "parallel_workers": 0, "debug": false}
JSON
buildah umount "$container" >/dev/null
buildah config --env PYTHONPATH=/opt/engines --env PYTHONDONTWRITEBYTECODE=1 --env HOME=/tmp \
    --user 10002:10002 --workingdir /tmp \
    --entrypoint '["/opt/mlserver/bin/mlserver", "start", "/opt/models"]' "$container"
buildah commit --quiet "$container" localhost/mlserver:1 >/dev/null
buildah push --quiet localhost/mlserver:1 "docker-archive:$file.new:localhost/mlserver:1"
# The file is what is kept.
buildah rmi localhost/mlserver:1 >/dev/null
mv "$file.new" "$file"
echo "$file"
