#!/usr/bin/env bash
# From `helm install` to the first answered query, as docs/how-to/kubernetes.md says it, with the times:
#
#   IMAGE=registry.example.com/inference-store:0.1.0 examples/first_query_on_a_cluster.sh [helm options]
#
# Needs kubectl, helm and curl, and a cluster that can pull IMAGE. Postgres, Kafka and the S3 store
# come with the release. RELEASE and NAMESPACE name where it goes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
RELEASE=${RELEASE:-store} NAMESPACE=${NAMESPACE:-inference-store}
: "${IMAGE:?name the image, as REPOSITORY:TAG}"
case $RELEASE in *inference-store*) full=$RELEASE ;; *) full=$RELEASE-inference-store ;; esac
k() { kubectl --namespace "$NAMESPACE" "$@"; }
say() { printf '%4d s  %s\n' "$SECONDS" "$1"; }
secret() { k get secret "$1" --output "go-template={{index .data \"$2\" | base64decode}}"; }

kubectl get namespace "$NAMESPACE" >/dev/null 2>&1 || kubectl create namespace "$NAMESPACE"
helm install "$RELEASE" "$here/../helm/inference-store" --namespace "$NAMESPACE" \
    --set dev.enabled=true --set image.repository="${IMAGE%:*}" --set image.tag="${IMAGE##*:}" \
    --wait --wait-for-jobs --timeout 10m "$@" >/dev/null
say "installed: every pod is ready"

k delete pod producer --ignore-not-found --wait >/dev/null
sed "s|IMAGE|$IMAGE|; s|FULL|$full|g" "$here/producer.yaml" | k apply --filename - >/dev/null
k wait --for=condition=Ready pod/producer --timeout=300s >/dev/null
k exec --stdin producer -- python - <"$here/publish_inference.py"
say "a producer has put three blobs and published an event"

token=$(secret "$full-api-token" api-token)
start_forward() {
    kubectl --namespace "$NAMESPACE" port-forward "service/$full-api" 18080:8080 >/dev/null 2>&1 &
    forward=$!
}
start_forward
trap 'kill $forward' EXIT
query() {
    curl --silent --fail "http://127.0.0.1:18080/v1/models/my-model/inferences/query" \
        --header "Authorization: Bearer $token" --header 'Content-Type: application/json' --data \
        '{"metadata_filter": [{"key": "frame_number", "type": "int", "operator": "gt", "value": 900}],
          "prediction": {"label": "cat", "score": {"lt": 0.8}}, "include": ["metadata", "predictions"]}'
}
until answer=$(query) && [[ $answer == *'"inference_id"'* ]]; do
    if ((SECONDS > 900)); then
        echo "no answer after 15 minutes" >&2
        exit 1
    fi
    kill -0 "$forward" 2>/dev/null || start_forward # it ends if the connection to its pod is lost
    sleep 0.5
done
say "the first query is answered"
echo "$answer"
