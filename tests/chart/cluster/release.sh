#!/bin/bash
# Rehearse a release on this machine, with a registry of its own in place of the public one: build
# image, chart, SBOM and wheels as .github/workflows/release.yml does, push and sign them, verify the
# signatures, and install from what was pushed. The key is made for the occasion: the workflow signs
# by its identity instead, which only its host can try. So is the image for the other architecture.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
cd "$root"
export BIN=${BIN:-$HOME/.cache/inference-store/cluster} CGO_ENABLED=0 GOFLAGS=
export COSIGN_PASSWORD='' SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
"$here/build.sh" tools
buildah inspect localhost/debian-python:1 >/dev/null 2>&1 || "$here/base-image.sh"
tool() { [ -x "$BIN/$1" ] || GOBIN=$BIN go install -trimpath -ldflags "-s -w" "$2"; } # NAME MODULE
tool crane github.com/google/go-containerregistry/cmd/crane@v0.20.6
tool cosign github.com/sigstore/cosign/v2/cmd/cosign@v2.6.1

work=$(mktemp -d)
version=$(make --silent version)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
registry=127.0.0.1:$port
image=$registry/inference-store
mkdir "$work/registry"
"$BIN/crane" registry serve --address "$registry" --disk "$work/registry" >"$work/registry.log" 2>&1 &
serving=$!
trap 'kill $serving; buildah rmi "$image:$version" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
for _ in $(seq 300); do "$BIN/crane" catalog --insecure "$registry" >/dev/null 2>&1 && break || sleep 0.2; done

echo "== build"
"$here/build-image.sh" "$image:$version"
make --no-print-directory wheel client-wheel sbom chart-package DIST="$work/dist"

echo "== push and sign"
buildah push --quiet --tls-verify=false "$image:$version"
digest=$("$BIN/crane" digest --insecure "$image:$version")
(cd "$work" && "$BIN/cosign" generate-key-pair)
signing=(--yes --key "$work/cosign.key" --tlog-upload=false --allow-insecure-registry)
"$BIN/cosign" sign "${signing[@]}" "$image@$digest"
"$BIN/cosign" attest "${signing[@]}" --type cyclonedx --predicate "$work/dist/sbom.json" "$image@$digest"
"$BIN/helm" push "$work/dist/inference-store-$version.tgz" "oci://$image/charts" --plain-http 2>&1 | tee "$work/push"
chart=$image/charts/inference-store@$(sed -n 's/^Digest: //p' "$work/push")
"$BIN/cosign" sign "${signing[@]}" "$chart"

echo "== verify, as a user would"
verifying=(--key "$work/cosign.pub" --insecure-ignore-tlog --allow-insecure-registry)
"$BIN/cosign" verify "${verifying[@]}" "$image@$digest" >/dev/null
"$BIN/cosign" verify "${verifying[@]}" "$chart" >/dev/null
"$BIN/cosign" verify-attestation "${verifying[@]}" --type cyclonedx "$image@$digest" >"$work/attestation"
[ -s "$work/attestation" ]
(cd "$work" && "$BIN/cosign" generate-key-pair --output-key-prefix other)
if "$BIN/cosign" verify --key "$work/other.pub" --insecure-ignore-tlog --allow-insecure-registry "$image@$digest" 2>/dev/null; then
    echo "a signature was accepted with the wrong key"
    exit 1
fi

echo "== install"
"$BIN/helm" template store "oci://$image/charts/inference-store" --version "$version" --plain-http \
    --kube-version 1.30.0 --set dev.enabled=true --set image.repository="$image" >"$work/objects.yaml"
grep -q "image: \"\?$image:$version" "$work/objects.yaml"
python3 -m venv "$work/client"
"$work/client/bin/pip" install --quiet "$work/dist/inference_store_client-$version-py3-none-any.whl"
"$work/client/bin/istore" --version
python3 -m venv "$work/store"
"$work/store/bin/pip" install --quiet --require-hashes -r requirements.lock
"$work/store/bin/pip" install --quiet --no-deps "$work/dist/inference_store-$version-py3-none-any.whl"
"$work/store/bin/inference-store" --version
echo "image $digest, chart and wheels of $version: built, signed, verified and installed"
