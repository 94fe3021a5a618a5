"""The chart on a real cluster, from its installation to its end. The tests follow each other."""

import pytest

from tests.servers.waiting import wait_until

from .cluster import list_values
from .images import CHART, ROOT
from .release import COMPONENTS, FULL, NAME, NAMESPACE, Release

pytestmark = pytest.mark.timeout(2400)


def test_cluster_accepts_every_object(release: Release) -> None:
    """The validation is strict: an unknown or duplicate field is refused, not dropped."""
    everything = {
        "api__autoscaling__enabled": "true",
        "ingester__autoscaling__enabled": "true",
        "api__ingress__enabled": "true",
        "api__ingress__hosts[0]": "store.example.com",
        "metrics__dashboard__enabled": "true",
    }
    # A helm built from its module assumes that the cluster is old.
    version = ("--kube-version", "1.33.0")
    objects = release.helm(
        "template", str(CHART), *version, *list_values(release.cluster, **everything)
    )
    output = release.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", text=objects
    )
    assert output.count("server dry run") > 25


def test_upgrade_under_load_loses_nothing(release: Release, figures: list[str]) -> None:
    token = release.read_secret(f"{FULL}-api-token", "api-token")
    servers = release.list_server_uids()
    with release.load("upgraded") as stop_script:
        release.wait_for_some("upgraded")
        seconds = release.upgrade(logs__level="warning")
        result = stop_script()
    check_all_stored(release, "upgraded", result)
    assert release.read_secret(f"{FULL}-api-token", "api-token") == token
    figures.append(
        f"helm upgrade under load: {seconds:.0f} s, {result['published']} published, 0 lost;"
        f" {result['requests']} requests to the api, {len(result['failed'])} failed"
    )
    if release.list_server_uids() == servers:  # a chart that changes them starts them again
        assert not result["failed"]
    else:
        figures.append("NOT checked that no request failed: the upgrade started the servers again")


def test_rollback_under_load_loses_nothing(release: Release, figures: list[str]) -> None:
    with release.load("rolled-back") as stop_script:
        release.wait_for_some("rolled-back")
        seconds = release.rollback("1")
        result = stop_script()
    check_all_stored(release, "rolled-back", result)
    level = release.kubectl("get", "configmap", FULL, "-o", "jsonpath={.data}")
    assert '"INFERENCE_STORE_LOG_LEVEL":"info"' in level
    image = release.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.containers[0].image}")
    assert release.cluster.image_before in image
    figures.append(
        f"helm rollback under load: {seconds:.0f} s, {result['published']} published, 0 lost"
    )


def test_upgrades_again_for_the_next_tests(release: Release) -> None:
    # on this node a query is slow, and still has to complete
    release.upgrade(settings__QUERY_TIMEOUT_SECONDS="60")
    assert release.read_count("rolled-back") >= 500


def test_stores_finds_and_expires_events(release: Release) -> None:
    assert release.client("publish", "story", "8") == "8"
    release.wait_for_count("story", 8)
    query = {"prediction": {"label": "person", "score": {"lt": 0.02}}}
    status, body = release.api("POST", "/v1/models/story/inferences/query", query)
    assert status == 200
    assert [item["inference_id"] for item in body["items"]] == ["inference-1", "inference-0"]
    rules = {"rules": [{"keep_input": "PT1S", "keep_inference": "PT1S"}]}
    policy: dict[str, object] = {"level": "model", "id": "story", **rules}
    _, preview = release.api("POST", "/v1/models/story/retention-policy/preview", policy)
    policy = {**policy, "effective": "now", "token": preview["token"]}
    status, body = release.api("PUT", "/v1/models/story/retention-policy", policy)
    assert status in {200, 201}, body
    assert release.api("POST", "/v1/models/story/retention-policy/run")[0] == 202
    release.wait_for_count("story", 0)
    wait_until(
        lambda: release.client("objects", "story/") == "0", seconds=300, what="the objects gone"
    )


def test_notes_warn_and_explain_how_to_begin(release: Release) -> None:
    output = release.helm("status")
    assert "WARNING: dev.enabled is true" in output
    assert "auth.enabled is false" not in output
    assert f"get secret {FULL}-api-token" in output
    assert '{{index .data "api-token" | base64decode}}' in output


def test_helm_test_passes(release: Release) -> None:
    output = release.helm("test", "--logs", "--timeout", "8m")
    assert "ok      postgres" in output
    assert "ok      send: it is hidden again" in output
    assert "FAILED" not in output


def test_idle_services_are_small(release: Release, figures: list[str]) -> None:
    memory = release.measure_memory()
    of_components = {
        name: [m for pod, m in memory.items() if f"-{name}-" in pod] for name in COMPONENTS
    }
    figures.append(f"MiB resident: {', '.join(f'{pod} {m}' for pod, m in sorted(memory.items()))}")
    one_each = sum(max(sizes) for sizes in of_components.values())
    figures.append(f"one ingester, api and retention service together: {one_each} MiB")
    assert one_each < 450


def test_killed_pods_lose_nothing(release: Release, figures: list[str]) -> None:
    selected = "app.kubernetes.io/component in (ingester, retention)"
    with release.load("killed") as stop_script:
        release.wait_for_some("killed")
        for _ in range(2):
            release.kubectl("delete", "pod", "-l", selected, "--grace-period=0", "--force")
            for name in ("ingester", "retention"):
                release.kubectl("rollout", "status", f"deployment/{FULL}-{name}", "--timeout=300s")
        result = stop_script()
    check_all_stored(release, "killed", result)
    figures.append(f"every ingester killed twice: {result['published']} published, 0 lost")


def check_all_stored(release: Release, model: str, result: dict[str, object]) -> None:
    published = result["published"]
    assert isinstance(published, int)
    assert published >= 500
    release.wait_for_count(model, published)
    status, books = release.api("GET", "/v1/accounting")
    assert status == 200
    assert books["closes"]
    assert not sum(partition["dead"] + partition["lost"] for partition in books["partitions"])


def test_uninstall_leaves_the_documented_objects(release: Release) -> None:
    release.helm("uninstall", "--wait")
    mine = ("-l", "app.kubernetes.io/instance=store", "-o", "name")
    # Helm keeps the pod of its test for its logs.
    wait_until(
        lambda: set(release.kubectl("get", "pods", *mine).split()) == {f"pod/{FULL}-doctor"},
        seconds=300,
        what="every pod gone",
    )
    kinds = "deployments,statefulsets,services,configmaps,secrets,serviceaccounts,jobs,pvc"
    remaining = set(release.kubectl("get", f"{kinds},networkpolicies,pdb", *mine).split())
    volumes = {f"data-{FULL}-{name}-0" for name in ("postgres", "kafka", "s3")}
    secrets = {f"secret/{FULL}-{name}" for name in ("api-token", "certificate-key", "dev")}
    assert remaining == secrets | {f"persistentvolumeclaim/{name}" for name in volumes}


def test_finds_its_data_when_installed_again(release: Release, figures: list[str]) -> None:
    """The script does what docs/how-to/kubernetes.md says."""
    token = release.read_secret(f"{FULL}-api-token", "api-token")
    image = release.cluster.image
    names = ("env", f"RELEASE={NAME}", f"NAMESPACE={NAMESPACE}", f"IMAGE={image}")
    script = str(ROOT / "examples" / "first_query_on_a_cluster.sh")
    output = release.cluster.run(*names, script, *list_values(release.cluster), seconds=1000)
    assert '"inference_id"' in output
    figures += [f"first_query_on_a_cluster.sh: {line.strip()}" for line in output.splitlines()[:-1]]
    assert release.read_secret(f"{FULL}-api-token", "api-token") == token
    assert release.read_count("upgraded") >= 500
