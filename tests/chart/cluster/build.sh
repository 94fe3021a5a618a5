#!/bin/bash
# Build what the chart's tests need into $BIN, each part only where it is not there yet:
#
#   build.sh tools   helm, kubeconform and its schemas (3 minutes the first time)
#   build.sh node    these, and a one-node Kubernetes: kube (etcd, the Kubernetes components,
#                    kubectl and CoreDNS in one binary), the image of its pause container and of a
#                    Debian with Python, and of an MLServer (15 minutes the first time)
#   build.sh         these, and the image of the servers, whose jars and binary are there already
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export BIN=${BIN:-$HOME/.cache/inference-store/cluster} CGO_ENABLED=0 GOFLAGS=
HELM_VERSION=${HELM_VERSION:-v3.22.0}
KUBECONFORM_VERSION=${KUBECONFORM_VERSION:-v0.8.0}
mkdir -p "$BIN/images"
if [ "${1:-}" = tools ] && [ -x "$BIN/helm" ] && [ -x "$BIN/kubeconform" ] && [ -d "$BIN/schemas" ]; then
    exit # without a wait for a node that is being built
fi
# One at a time: the tests may ask for what is being built.
exec 9>"$BIN/.lock"
flock 9

tool() { # NAME MODULE: build a program once
    [ -x "$BIN/$1" ] || GOBIN=$BIN go install -trimpath -ldflags "-s -w" "$2"
}

schemas() {
    local kubernetes
    kubernetes=$(cd "$here/kube" && go list -m -f '{{.Dir}}' k8s.io/kubernetes)
    if [ -z "$kubernetes" ]; then
        kubernetes=$(cd "$here/kube" && go mod download -json k8s.io/kubernetes | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    fi
    python3 "$here/schemas.py" "$BIN/schemas.new" <"$kubernetes/api/openapi-spec/swagger.json"
    mv "$BIN/schemas.new" "$BIN/schemas"
}

kube() {
    cd "$here/kube"
    local version minor flags="-s -w" package
    version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
    minor=${version#v1.}
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
    done
    go build -trimpath -ldflags "$flags" -o "$BIN/kube.new" .
    mv "$BIN/kube.new" "$BIN/kube"
}

pause() { # one static program which waits
    local root container
    root=$(mktemp -d)
    go build -trimpath -ldflags "-s -w" -o "$root/pause" "$here/pause/pause.go"
    container=$(buildah from scratch)
    buildah copy --quiet "$container" "$root/pause" /pause
    buildah config --entrypoint '["/pause"]' --user 65535:65535 "$container"
    buildah commit --quiet --rm "$container" localhost/pause:1
    rm -rf "$root" "$BIN/images/pause.tar"
    buildah push --quiet localhost/pause:1 "docker-archive:$BIN/images/pause.tar:localhost/pause:1"
}

tool helm "helm.sh/helm/v3/cmd/helm@$HELM_VERSION"
tool kubeconform "github.com/yannh/kubeconform/cmd/kubeconform@$KUBECONFORM_VERSION"
[ -d "$BIN/schemas" ] || schemas
[ "${1:-}" = tools ] && exit
[ -x "$BIN/kube" ] || kube
[ -e "$BIN/images/pause.tar" ] || pause
buildah inspect localhost/debian-python:1 >/dev/null 2>&1 || "$here/base-image.sh"
"$here/mlserver-image.sh"
[ "${1:-}" = node ] && exit
if [ ! -e "$BIN/images/servers-2.tar" ]; then
    cache=${INFERENCE_STORE_SERVERS_CACHE:-$HOME/.cache/inference-store/servers}
    "$here/servers-image.sh" "$(echo "$cache"/kafka-*/libs)" "$(echo "$cache"/minio-*/minio)"
fi
