"""The proxy on a real cluster, before a real MLServer: a gateway, and a sidecar. In order."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_store.platform.settings import PREFIX
from tests.servers.waiting import wait_until
from tests.upstreams.pictures import photograph

from .cluster import Cluster
from .images import CHART
from .release import FULL, Release

pytestmark = pytest.mark.timeout(1200)
NAMESPACE = "inference-store-proxied"
GATEWAY = f"http://{FULL}-proxy:8090"
_HERE = Path(__file__).parent
_PICTURE = f"PICTURE = {base64.b64encode(photograph()).decode()!r}\n"
CALLER = _PICTURE + (_HERE / "caller.py").read_text()
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
    "settings": {"PROXY_REPORT_SECONDS": 2},
}


@pytest.fixture(scope="module")
def proxied(
    cluster: Cluster,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    figures: list[str],
) -> Iterator[Release]:
    """This version, installed with a gateway before an MLServer, and a client beside it."""
    release = Release(cluster, NAMESPACE)
    file = tmp_path_factory.mktemp("values") / "values.json"
    file.write_text(json.dumps(VALUES))
    release.make_namespace()
    ready = False
    try:
        model_server(release, "mlserver")
        seconds = release.install_this("--values", str(file))
        figures.append(f"helm install --wait with a gateway: {seconds:.0f} s")
        release.start_client()
        release.kubectl("rollout", "status", "deployment/mlserver", "--timeout=180s")
        ready = True
        yield release
    finally:
        if request.session.testsfailed or not ready:
            print(release.report())
        cluster.remove(NAMESPACE)


def model_server(release: Release, name: str, rest: str = "http", grpc: str = "grpc") -> None:
    """An MLServer, and a Service that leads to two named ports of its pod."""
    text = (_HERE / "mlserver.yaml").read_text()
    filled = {"NAME": name, "IMAGE": release.cluster.mlserver_image, "REST": rest, "RPC": grpc}
    for word, value in filled.items():
        text = text.replace(word, value)
    release.kubectl("apply", "-f", "-", text=text)


def called(release: Release, *arguments: str) -> Any:
    """What the caller's script prints."""
    return json.loads(release.client(*arguments, script=CALLER))


def query(release: Release, model: str, filter_: str) -> list[dict[str, Any]]:
    """The inferences that a filter finds."""
    body = {"filter": filter_, "include": ["metadata", "predictions"]}
    status, found = release.api("POST", f"/v1/models/{model}/inferences/query", body)
    assert status == 200, found
    return list(found["items"])


def test_from_the_clients_call_to_the_answered_query(proxied: Release, figures: list[str]) -> None:
    direct = called(proxied, "rest", "http://mlserver:8080", "faces", "picture-1")
    through = called(proxied, "rest", GATEWAY, "faces", "picture-1")
    assert direct["status"] == through["status"] == 200
    assert through["answer"] == direct["answer"]
    began = time.monotonic()
    proxied.wait_for_count("faces", 1)
    figures.append(f"a call through the gateway, found: {time.monotonic() - began:.1f} s later")
    (found,) = query(
        proxied, "faces", "camera = 'door' AND prediction(label = 'face' AND score > 0.5)"
    )
    assert found["inference_id"] == "picture-1"
    assert found["data_hash"] == through["digest"]
    assert (found["width"], found["height"]) == (512, 512)
    answered = json.loads(through["answer"])["outputs"][0]["data"][0]
    assert found["predictions"][0]["xmin"] == answered["xmin"]
    assert found["http_status"] == 200


def test_the_same_over_grpc(proxied: Release) -> None:
    answer = called(proxied, "grpc", f"{FULL}-proxy:8091", "faces-text", "picture-2")
    assert answer == {"model": "faces-text", "id": "picture-2"}
    proxied.wait_for_count("faces-text", 1)
    (found,) = query(proxied, "faces-text", "camera = 'door' AND prediction(label = 'face')")
    assert (found["inference_id"], found["protocol"]) == ("picture-2", "v2-grpc")
    assert found["width"] == 512


def test_helm_test_sends_an_inference_through_it(proxied: Release, figures: list[str]) -> None:
    began = time.monotonic()
    said = proxied.helm("test", "--logs", "--timeout", "4m")
    assert "went through the proxy" in said
    assert "its answer has status 200" in said
    assert "it is captured and indexed" in said
    assert "The line works, from the event to the answer." in said
    figures.append(f"helm test with a call through the gateway: {time.monotonic() - began:.0f} s")


def test_it_has_never_heard_of_postgres(proxied: Release) -> None:
    environment = proxied.kubectl("exec", f"deployment/{FULL}-proxy", "--", "env")
    assert f"{PREFIX}S3_ACCESS_KEY=" in environment
    assert "POSTGRES" not in environment.upper()
    assert "API_TOKEN" not in environment


def read_metrics(release: Release) -> dict[str, str]:
    """Return what each gateway pod says at its admin port, by its address and restarts."""
    selected = ("--selector", "app.kubernetes.io/component=proxy")
    columns = "custom-columns=A:.status.podIP,B:.status.containerStatuses[0].restartCount"
    pods = release.kubectl("get", "pods", *selected, "--no-headers", "-o", columns).splitlines()
    return {
        f"{address}, restarted {restarts} times": release.client(
            "get", f"http://{address}:9104/metrics", script=CALLER
        )
        for address, restarts in map(str.split, pods)
    }


def test_its_metrics_are_read_at_its_admin_port(proxied: Release, figures: list[str]) -> None:
    assert called(proxied, "rest", GATEWAY, "faces", "picture-3")["status"] == 200
    proxied.wait_for_count("faces", 2)
    address = f"http://{FULL}-proxy-admin:9104/metrics"
    spoken = proxied.client("get", address, script=CALLER)
    assert "inference_store_proxy_spool_limit_bytes 1.073741824e+09" in spoken
    assert 'inference_store_proxy_captures_total{outcome="seen"}' in spoken
    labels = 'outcome="ok",protocol="v2",upstream="mlserver"'
    counted = f"inference_store_proxy_call_seconds_count{{{labels}}}"
    metrics = read_metrics(proxied)  # either pod may have had the REST call, so each is asked
    figures.append(f"pods of the gateway: {'; '.join(metrics)}")
    assert any(counted in text for text in metrics.values()), json.dumps(metrics, indent=1)


def test_without_s3_and_kafka_callers_get_their_answers(
    proxied: Release, figures: list[str]
) -> None:
    before = proxied.count("digits")
    servers = [f"statefulset/{FULL}-{name}" for name in ("s3", "kafka")]
    proxied.kubectl("scale", *servers, "--replicas=0")
    for name in ("s3", "kafka"):
        proxied.kubectl("wait", "--for=delete", f"pod/{FULL}-{name}-0", "--timeout=120s")
    with proxied.meanwhile(CALLER, "calls", GATEWAY, "digits") as done:
        did = done()
    assert not did["failed"]
    proxied.kubectl("scale", *servers, "--replicas=1")
    for one in servers:
        proxied.kubectl("rollout", "status", one, "--timeout=180s")
    proxied.wait_for_count("digits", before + did["asked"], seconds=300)
    figures.append(f"without S3 and Kafka: {did['asked']} calls, 0 failed, all captured later")


def test_new_pods_take_over_and_no_call_fails(proxied: Release, figures: list[str]) -> None:
    before = proxied.count("digits")
    deployment = f"deployment/{FULL}-proxy"

    def pods() -> set[str]:
        selected = ("--selector", "app.kubernetes.io/component=proxy")
        return set(proxied.kubectl("get", "pods", *selected, "-o", "name").split())

    old = pods()
    with proxied.meanwhile(CALLER, "calls", GATEWAY, "digits") as done:
        proxied.kubectl("rollout", "restart", deployment)
        proxied.kubectl("rollout", "status", deployment, "--timeout=300s")
        wait_until(lambda: not old & pods(), seconds=120, what="the old pods gone")
        did = done()
    assert not did["failed"]
    proxied.wait_for_count("digits", before + did["asked"], seconds=120)
    figures.append(f"the gateway started anew under load: {did['asked']} calls, 0 failed, 0 lost")


def test_the_books_of_all_its_pods_close(proxied: Release) -> None:
    producers: list[dict[str, object]] = []

    def closed() -> bool:
        status, books = proxied.api("GET", "/v1/accounting")
        assert status == 200
        producers[:] = books["producers"]
        ended = [one for one in producers if one["state"] == "ended"]
        whole = all(one["closes"] and not one["queued"] for one in producers)
        return books["closes"] and whole and len(ended) >= 2

    try:
        wait_until(closed, seconds=60, what="the books of every pod closed")
    except TimeoutError as error:
        error.add_note(f"the producers: {producers}")
        raise


def test_a_patch_puts_it_beside_a_model_server(proxied: Release, figures: list[str]) -> None:
    model_server(proxied, "beside", "proxy", "proxy-grpc")
    name = f"{FULL}-proxy-sidecar-patch"
    patch = proxied.kubectl("get", "configmap", name, "-o", "jsonpath={.data.patch\\.yaml}")
    proxied.kubectl("patch", "deployment", "beside", "--patch", patch)
    proxied.kubectl("rollout", "status", "deployment/beside", "--timeout=300s")
    before = proxied.count("faces")

    def answered() -> bool:  # the node learns of a Service's new pod a moment after the Deployment
        sent = called(proxied, "rest", "http://beside:8080", "faces", "picture-4")
        return bool(sent["status"] == 200)

    wait_until(answered, seconds=30, what="the pod with its proxy answered")
    called(proxied, "grpc", "beside:8081", "faces-text", "picture-5")
    proxied.wait_for_count("faces", before + 1)
    proxied.wait_for_count("faces-text", 2)
    found = {one["inference_id"] for one in query(proxied, "faces", "camera = 'door'")}
    assert "picture-4" in found
    figures.append("a proxy patched into a Deployment: its calls over REST and gRPC are captured")


def test_the_cluster_takes_the_plain_example_as_it_is_meant(proxied: Release) -> None:
    file = str(CHART / "examples" / "deployment.yaml")
    said = proxied.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", file)
    assert said.count("server dry run") == 2
