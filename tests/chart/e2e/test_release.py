"""The chart on a real cluster, from its installation to its end. The tests follow each other."""

import time

import pytest

from inference_store.index.schema import newest
from tests.servers.waiting import wait_until

from .cluster import values
from .images import CHART, ROOT
from .release import COMPONENTS, FULL, NAME, NAMESPACE, Release

pytestmark = pytest.mark.timeout(1200)


def test_the_cluster_takes_every_object_as_it_is_meant(release: Release) -> None:
    """Strict: an unknown or doubled field is refused, not dropped."""
    everything = {
        "api__autoscaling__enabled": "true",
        "ingester__autoscaling__enabled": "true",
        "ingress__enabled": "true",
        "ingress__hosts[0]": "store.example.com",
        "metrics__dashboard__enabled": "true",
    }
    # A helm built from its module takes the cluster for an old one.
    version = ("--kube-version", "1.33.0")
    objects = release.helm("template", str(CHART), *version, *values(release.cluster, **everything))
    said = release.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", text=objects
    )
    assert said.count("server dry run") > 25


def test_an_upgrade_under_load_loses_nothing(release: Release, figures: list[str]) -> None:
    """From the version before: its schema is migrated while it works on."""
    token = release.secret(f"{FULL}-api-token", "api-token")
    servers = release.servers()
    with release.load("upgraded") as done:
        release.wait_for_some("upgraded")
        seconds = release.upgrade(logs__level="warning")
        did = done()
    if release.cluster.before.migrates:
        assert f"The schema is {newest()}." in release.migrated()
    check_all_there(release, "upgraded", did)
    assert release.secret(f"{FULL}-api-token", "api-token") == token
    figures.append(
        f"helm upgrade under load: {seconds:.0f} s, {did['published']} published, 0 lost;"
        f" {did['asked']} requests to the api, {len(did['failed'])} failed"
    )
    if release.servers() == servers:  # a chart that changes them starts them anew
        assert not did["failed"]
    else:
        figures.append("NOT checked that no request failed: the upgrade started the servers anew")


def test_a_rollback_under_load_loses_nothing(release: Release, figures: list[str]) -> None:
    """The version before, on the newer schema."""
    with release.load("rolled-back") as done:
        release.wait_for_some("rolled-back")
        seconds = release.rollback("1")
        did = done()
    check_all_there(release, "rolled-back", did)
    level = release.kubectl("get", "configmap", FULL, "-o", "jsonpath={.data}")
    assert '"INFERENCE_STORE_LOG_LEVEL":"info"' in level
    image = release.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.containers[0].image}")
    assert release.cluster.before.image in image
    figures.append(
        f"helm rollback under load: {seconds:.0f} s, {did['published']} published, 0 lost"
    )


def test_it_is_upgraded_once_more_for_what_follows(release: Release) -> None:
    release.upgrade()
    assert release.count("rolled-back") >= 500


def test_an_event_is_stored_found_and_expires(release: Release, figures: list[str]) -> None:
    began = time.monotonic()
    assert release.client("publish", "story", "8") == "8"
    release.wait_for_count("story", 8)
    figures.append(f"eight inferences published and found: {time.monotonic() - began:.1f} s")
    question = {"prediction": {"label": "person", "score": {"lt": 0.02}}}
    status, body = release.api("POST", "/v1/models/story/inferences/query", question)
    assert status == 200
    assert [one["inference_id"] for one in body["items"]] == ["inference-1", "inference-0"]
    policy: dict[str, object] = {"rules": [{"keep_input": "PT1S", "keep_inference": "PT1S"}]}
    _, seen = release.api("POST", "/v1/models/story/retention-policy/preview", policy)
    policy = {**policy, "effective": "now", "token": seen["token"]}
    status, body = release.api("PUT", "/v1/models/story/retention-policy", policy)
    assert status in {200, 201}, body
    began = time.monotonic()
    assert release.api("POST", "/v1/models/story/retention-policy/run")[0] == 202
    release.wait_for_count("story", 0)
    wait_until(
        lambda: release.client("objects", "story/") == "0", seconds=60, what="the objects gone"
    )
    figures.append(f"expired, and their objects gone: {time.monotonic() - began:.1f} s")


def test_the_notes_warn_and_say_how_to_begin(release: Release) -> None:
    said = release.helm("status")
    assert "WARNING: dev.enabled is true" in said
    assert "auth.enabled is false" not in said
    assert f"get secret {FULL}-api-token" in said
    assert '{{index .data "api-token" | base64decode}}' in said


def test_helm_test_passes(release: Release, figures: list[str]) -> None:
    began = time.monotonic()
    said = release.helm("test", "--logs", "--timeout", "4m")
    assert "The line works, from the event to the answer." in said
    assert "ok      postgres" in said
    assert "FAILED" not in said
    figures.append(f"helm test: {time.monotonic() - began:.0f} s")


def test_the_services_are_small_when_idle(release: Release, figures: list[str]) -> None:
    found = release.memory()
    each = {name: [m for pod, m in found.items() if f"-{name}-" in pod] for name in COMPONENTS}
    figures.append(f"MiB resident: {', '.join(f'{pod} {m}' for pod, m in sorted(found.items()))}")
    one_each = sum(max(sizes) for sizes in each.values())
    figures.append(f"one ingester, api and retention service together: {one_each} MiB")
    assert one_each < 450


def test_whoever_has_no_key_is_refused(release: Release) -> None:
    address = f"http://{FULL}-api:8080/v1/models"
    script = (
        "import urllib.request, urllib.error\n"
        f"try: urllib.request.urlopen({address!r})\n"
        "except urllib.error.HTTPError as error: print(error.code)"
    )
    said = release.kubectl("exec", "-i", "client", "--", "python", "-", text=script)
    assert said.strip() == "401"


def test_killed_pods_lose_nothing(release: Release, figures: list[str]) -> None:
    selected = "app.kubernetes.io/component in (ingester, retention)"
    with release.load("killed") as done:
        release.wait_for_some("killed")
        for _ in range(2):
            release.kubectl("delete", "pod", "-l", selected, "--grace-period=0", "--force")
            for name in ("ingester", "retention"):
                release.kubectl("rollout", "status", f"deployment/{FULL}-{name}", "--timeout=300s")
        did = done()
    check_all_there(release, "killed", did)
    figures.append(f"every ingester killed twice: {did['published']} published, 0 lost")


def check_all_there(release: Release, model: str, did: dict[str, object]) -> None:
    published = did["published"]
    assert isinstance(published, int)
    assert published >= 500
    release.wait_for_count(model, published, seconds=300)
    status, books = release.api("GET", "/v1/accounting")
    assert status == 200
    assert books["closes"]
    assert not sum(each["dead"] + each["lost"] for each in books["partitions"])


def test_an_uninstall_leaves_what_it_says(release: Release) -> None:
    release.helm("uninstall", "--wait")
    mine = ("-l", "app.kubernetes.io/instance=store", "-o", "name")
    # Helm leaves the pods of its test, for their logs.
    tests = {f"pod/{FULL}-{name}" for name in ("doctor", "smoke")}
    wait_until(
        lambda: set(release.kubectl("get", "pods", *mine).split()) == tests,
        seconds=180,
        what="every pod gone",
    )
    kinds = "deployments,statefulsets,services,configmaps,secrets,serviceaccounts,jobs,pvc"
    left = set(release.kubectl("get", f"{kinds},networkpolicies,pdb", *mine).split())
    volumes = {f"data-{FULL}-{name}-0" for name in ("postgres", "kafka", "s3")}
    assert left == {f"secret/{FULL}-api-token", f"secret/{FULL}-dev"} | {
        f"persistentvolumeclaim/{name}" for name in volumes
    }


def test_installed_again_it_finds_its_data(release: Release, figures: list[str]) -> None:
    """By the script that does what docs/kubernetes.md says."""
    token = release.secret(f"{FULL}-api-token", "api-token")
    image = release.cluster.image
    names = ("env", f"RELEASE={NAME}", f"NAMESPACE={NAMESPACE}", f"IMAGE={image}")
    script = str(ROOT / "examples" / "first_query_on_a_cluster.sh")
    said = release.cluster.run(*names, script, *values(release.cluster), seconds=1000)
    assert '"inference_id"' in said
    figures += [f"first_query_on_a_cluster.sh: {line.strip()}" for line in said.splitlines()[:-1]]
    assert release.secret(f"{FULL}-api-token", "api-token") == token
    assert release.count("upgraded") >= 500
