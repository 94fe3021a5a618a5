"""The proxy on a real cluster in front of a real MLServer: a gateway, and a sidecar. In order."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.waiting import wait_until
from tests.upstreams.pictures import photograph

from .cluster import Cluster
from .release import FULL, Release

pytestmark = pytest.mark.timeout(2400)
NAMESPACE = "inference-store-proxied"
GATEWAY = f"http://{FULL}-proxy:8090"
_HERE = Path(__file__).parent
_PICTURE = f"PICTURE = {base64.b64encode(photograph()).decode()!r}\n"
CALLER = _PICTURE + (_HERE / "client.py").read_text()
DIGIT = {"name": "pixels", "datatype": "FP64", "shape": [1, 64], "data": [0.0] * 64}
VALUES = {
    # one node with two cores
    "api": {"replicas": 1},
    "ingester": {"replicas": 1},
    "proxy": {
        "enabled": True,
        "upstreams": [{"name": "mlserver", "url": "http://mlserver:8080", "grpc": "mlserver:8081"}],
        "models": [
            {"model": "faces*", "task_type": "object_detection"},
            {"model": "digits", "task_type": "tabular", "project_id": "tests"},
        ],
        "spool": {"mode": "all"},
        "test": {
            "path": "/v2/models/digits/infer",
            "request": {"inputs": [DIGIT]},
            "model": "digits",
        },
        "sidecar": {"enabled": True, "upstreamGrpc": "127.0.0.1:8081"},
    },
    "settings": {
        "PROXY_REPORT_SECONDS": 2,
        # on this node a query is slow, and still has to complete
        "QUERY_TIMEOUT_SECONDS": 60,
    },
}


@pytest.fixture(scope="module")
def gateway(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """Install this version with a gateway in front of an MLServer, and a client beside it."""
    release = Release(cluster, NAMESPACE)
    file = tmp_path_factory.mktemp("values") / "values.json"
    file.write_text(json.dumps(VALUES))
    release.make_namespace()
    ready = False
    try:
        install_model_server(release, "mlserver")
        release.install_this("--values", str(file))
        release.start_client()
        release.kubectl("rollout", "status", "deployment/mlserver", "--timeout=300s")
        ready = True
        yield release
    finally:
        if request.session.testsfailed or not ready:
            print(release.report())
        cluster.remove(NAMESPACE)


def install_model_server(
    release: Release, name: str, rest: str = "http", grpc: str = "grpc"
) -> None:
    """Install an MLServer, and a Service for two named ports of its pod."""
    text = (_HERE / "mlserver.yaml").read_text()
    filled = {"NAME": name, "IMAGE": release.cluster.mlserver_image, "REST": rest, "RPC": grpc}
    for word, value in filled.items():
        text = text.replace(word, value)
    release.kubectl("apply", "-f", "-", text=text)


def call_script(release: Release, *arguments: str) -> Any:
    return json.loads(release.client(*arguments, script=CALLER))


def wait_for_call(release: Release, model: str, name: str) -> None:
    def is_stored() -> bool:
        body = {"filter": "camera = 'door'"}
        status, answer = release.api("POST", f"/v1/models/{model}/inferences/query", body)
        if status == 404:  # the model is known with its first inference
            return False
        assert status == 200, answer
        return name in {inference["inference_id"] for inference in answer["items"]}

    wait_until(is_stored, seconds=300, what=f"{name} stored")


def test_helm_test_sends_an_inference_through_the_gateway(gateway: Release) -> None:
    output = gateway.helm("test", "--logs", "--timeout", "8m")
    assert "went through the proxy" in output
    assert "its answer has status 200" in output
    assert "ok      send: it is hidden again" in output


def test_no_call_fails_when_pods_are_replaced(gateway: Release) -> None:
    before = gateway.read_count("digits")
    deployment = f"deployment/{FULL}-proxy"

    def pods() -> set[str]:
        selected = ("--selector", "app.kubernetes.io/component=proxy")
        return set(gateway.kubectl("get", "pods", *selected, "-o", "name").split())

    old = pods()
    with gateway.run_meanwhile(CALLER, "calls", GATEWAY, "digits") as stop_script:
        gateway.kubectl("rollout", "restart", deployment)
        gateway.kubectl("rollout", "status", deployment, "--timeout=300s")
        wait_until(lambda: not old & pods(), seconds=300, what="the old pods gone")
        result = stop_script()
    assert not result["failed"]
    gateway.wait_for_count("digits", before + result["calls"])


def test_books_of_all_pods_close(gateway: Release) -> None:
    producers: list[dict[str, Any]] = []

    def closed() -> bool:
        status, books = gateway.api("GET", "/v1/accounting")
        assert status == 200
        producers[:] = books["producers"]
        ended = [producer for producer in producers if producer["state"] == "ended"]
        reports = [report for producer in producers for report in producer["reports"][-1:]]
        whole = all(producer["closes"] for producer in producers)
        whole = whole and not any(report["queued"] for report in reports)
        return books["closes"] and whole and len(ended) >= 2

    try:
        wait_until(closed, seconds=300, what="the books of every pod closed")
    except TimeoutError as error:
        error.add_note(f"the producers: {producers}")
        raise


def test_patches_a_proxy_into_a_deployment(gateway: Release) -> None:
    install_model_server(gateway, "beside", "proxy", "proxy-grpc")
    name = f"{FULL}-proxy-sidecar-patch"
    patch = gateway.kubectl("get", "configmap", name, "-o", "jsonpath={.data.patch\\.yaml}")
    gateway.kubectl("patch", "deployment", "beside", "--patch", patch)
    gateway.kubectl("rollout", "status", "deployment/beside", "--timeout=300s")

    def has_answered() -> bool:
        # the node sees the new pod of a Service a moment after the Deployment
        answer = call_script(gateway, "rest", "http://beside:8080", "faces", "picture-4")
        return bool(answer["status"] == 200)

    wait_until(has_answered, seconds=300, what="the pod with its proxy answered")
    call_script(gateway, "grpc", "beside:8081", "faces-text", "picture-5")
    wait_for_call(gateway, "faces", "picture-4")
    wait_for_call(gateway, "faces-text", "picture-5")
