"""The objects of every installation: valid, restricted, and without dangling references."""

import json
import re
from base64 import b64decode
from collections.abc import Iterator

import pytest

from inference_store.api import thumbnail_worker
from inference_store.erasure.log import read_keys
from inference_store.platform.settings import PREFIX, ApiSettings, ProxySettings, names

from .matrix import MATRIX, SERVERS
from .rendering import (
    CHART,
    FULL,
    Object,
    Values,
    check_fields,
    check_restricted,
    helm,
    list_containers,
    render_objects,
    select_kind,
    select_pods,
)

pytestmark = pytest.mark.real_helm
SERVICES = {"api": 9102, "ingester": 9101, "retention": 9103}
# Objects whose schemas come with an operator.
FOREIGN = ("ServiceMonitor", "PodMonitor", "PrometheusRule", "HTTPRoute", "GRPCRoute")


def list_services(values: Values) -> dict[str, int]:
    services = (SERVICES | {"proxy": 9104}).items()
    return {of: at for of, at in services if values.get(of, {}).get("enabled", of != "proxy")}


def list_pods() -> Iterator[tuple[str, Object]]:
    for row, values in MATRIX.items():
        pods = select_pods(render_objects(values))
        assert len(pods) >= len(list_services(values)), row
        for name, pod in pods.items():
            yield f"{row}: {name}", pod


def test_helm_lint_finds_no_errors() -> None:
    for row in ("everything that may be left out", "trying out with a proxy"):
        assert "0 chart(s) failed" in helm("lint", "--strict", values=MATRIX[row]), row


def test_kubernetes_knows_every_field() -> None:
    objects = [document for values in MATRIX.values() for document in render_objects(values)]
    check_fields(objects, *FOREIGN)


def test_retention_has_room_for_the_largest_part_of_an_export() -> None:
    pods = select_pods(render_objects(SERVERS))
    sizes = {
        name.rpartition("-")[2]: volume["emptyDir"]["sizeLimit"]
        for name, pod in pods.items()
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "tmp" and name.startswith("Deployment/")
    }
    # INFERENCE_STORE_EXPORT_PART_BYTES is 1 GiB at most, a part twice that, and on the disk twice
    assert (sizes["retention"], sizes["api"], sizes["ingester"]) == ("5Gi", "64Mi", "64Mi")


def test_every_pod_passes_the_restricted_standard() -> None:
    for name, pod in list_pods():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        claims = {"data"} if "StatefulSet/" in name else set()
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | claims
        for container in list_containers(pod):
            check_restricted(container)
            assert container["resources"]["requests"]["cpu"], name
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, name
        for volume in spec.get("volumes", []):
            kinds = set(volume) - {"name"}
            allowed = {"emptyDir", "configMap", "secret", "projected", "persistentVolumeClaim"}
            assert kinds <= allowed, name


def test_limits_of_memory_hold_what_the_settings_allow() -> None:
    many = {"THUMBNAIL_PROCESSES": 8, "PROXY_CAPTURE_BYTES": 2**30}
    for settings in ({}, many, {"THUMBNAIL_PROCESSES": 0}):
        said: Object = {name.lower(): value for name, value in settings.items()}
        api, proxy = ApiSettings.model_construct(**said), ProxySettings.model_construct(**said)
        buffers = 2 * proxy.proxy_capture_bytes
        allowed = {
            "api": 512 * 2**20 + api.thumbnail_processes * thumbnail_worker.MEMORY_BYTES,
            "proxy": 640 * 2**20 + buffers + proxy.proxy_grpc_message_bytes,
        }
        objects = render_objects(MATRIX["trying out with a proxy"] | {"settings": settings})
        for name, most in allowed.items():
            pod = select_pods(objects)[f"Deployment/{FULL}-{name}"]["spec"]
            assert pod["containers"][0]["resources"]["limits"]["memory"] == f"{most // 2**20}Mi"


def test_development_servers_have_writable_volumes() -> None:
    """The image of Kafka writes its configuration and logs, that of Postgres its socket."""
    stateful_sets = select_kind(render_objects(MATRIX["trying out"]), "StatefulSet")
    written = {
        name.rpartition("-")[2]: {
            mount["mountPath"]
            for mount in stateful_set["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        }
        for name, stateful_set in stateful_sets.items()
    }
    assert written == {
        "postgres": {"/var/lib/postgresql/data", "/var/run/postgresql", "/tmp"},
        "kafka": {"/var/lib/kafka/data", "/opt/kafka/config", "/opt/kafka/logs", "/tmp"},
        "s3": {"/data", "/tmp"},
    }


def test_every_setting_exists() -> None:
    for row, values in MATRIX.items():
        objects = render_objects(values)
        configs = [config["data"] for config in select_kind(objects, "ConfigMap").values()]
        data = [config for config in configs if any(name.startswith(PREFIX) for name in config)]
        said = [settings[f"{PREFIX}AUTH"] for settings in data if f"{PREFIX}AUTH" in settings]
        assert set(said) <= {"off" if row == "without policies and keys" else "on"}, row
        used = {name for settings in data for name in settings}
        for pod in select_pods(objects).values():
            for container in pod["spec"]["containers"]:
                used |= {variable["name"] for variable in container.get("env", [])}
        assert {name for name in used if name.startswith(PREFIX)} <= names(), row
        for settings in data:
            for name, value in settings.items():
                assert value, f"{row}: {name} is set to nothing"
                assert "e+" not in value, f"{row}: {name} has lost its digits"


def test_no_secret_is_in_a_configmap_and_no_account_has_a_token() -> None:
    for row, values in MATRIX.items():
        objects = render_objects(values)
        for name, account in select_kind(objects, "ServiceAccount").items():
            assert account["automountServiceAccountToken"] is False, (row, name)
        config_maps = select_kind(objects, "ConfigMap")
        # A sidecar's patch has references: tests/chart/test_proxy.py
        text = json.dumps(
            [config_map for name, config_map in config_maps.items() if not name.endswith("-patch")]
        )
        for secret in ("a 'quoted", "pa:ss", '"secret"', "PASSWORD", "API_TOKEN", "SECRET_KEY"):
            assert secret not in text, row


def test_every_referenced_secret_exists() -> None:
    given = r'"(?:existingSecret|s3ExistingSecret)": "([^"]+)"'
    for row, values in MATRIX.items():
        objects = render_objects(values)
        keys_of_secrets = {
            name: set(secret.get("data") or secret["stringData"])
            for name, secret in select_kind(objects, "Secret").items()
        }
        existing = set(re.findall(given, json.dumps(values)))
        references = [
            variable["valueFrom"]["secretKeyRef"]
            for pod in select_pods(objects).values()
            for container in list_containers(pod)
            for variable in container.get("env", [])
            if "valueFrom" in variable
        ]
        for reference in references:
            is_rendered = reference["key"] in keys_of_secrets.get(reference["name"], ())
            assert is_rendered or reference["name"] in existing, (row, reference)


def test_first_install_makes_a_key_with_its_public_half() -> None:
    """reach.txt has which of the two each pod gets."""
    secret = select_kind(render_objects(SERVERS), "Secret")[f"{FULL}-certificate-key"]
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    private, public = (b64decode(text).decode() for text in secret["data"].values())
    assert [key.public.pem for key in read_keys(private)] == [public]
    file = {"settings": {"CERTIFICATE_KEY_FILE": "/keys/one"}}
    assert "certificate-key" not in json.dumps(render_objects(SERVERS | file))


def test_services_have_probes_a_grace_period_and_a_disruption_budget() -> None:
    for row, values in MATRIX.items():
        objects = render_objects(values)
        budgets = select_kind(objects, "PodDisruptionBudget").values()
        allowed = [budget["spec"].get("maxUnavailable", "50%") for budget in budgets]
        assert len(allowed) == len(list_services(values)), row
        assert set(allowed) <= {1, "50%"}, row
        scheme = "HTTPS" if values.get("admin") else "HTTP"
        for name, port in list_services(values).items():
            (deployment,) = (
                candidate
                for key, candidate in select_kind(objects, "Deployment").items()
                if key.endswith(f"-{name}")
            )
            spec = deployment["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            assert {"name": "admin", "containerPort": port} in container["ports"], row
            for probe, path in (("livenessProbe", "live"), ("readinessProbe", "ready")):
                request = container[probe]["httpGet"]
                expected = {"path": f"/health/{path}", "port": "admin", "scheme": scheme}
                assert request == expected, (row, name)
            assert spec["terminationGracePeriodSeconds"] > 30, row
            assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0, row
            if name == "proxy":  # it does not use Postgres
                assert "initContainers" not in spec
            else:
                assert spec["initContainers"][0]["args"][:2] == ["migrate", "--check"], row
            assert len(spec["topologySpreadConstraints"]) == 2, row


def test_selectors_select_the_pods_of_one_component() -> None:
    for row, values in MATRIX.items():
        objects = render_objects(values)
        labels = {name: pod["metadata"]["labels"] for name, pod in select_pods(objects).items()}
        for service in select_kind(objects, "Service").values():
            selector = service["spec"]["selector"].items()
            matching = [name for name, own in labels.items() if selector <= own.items()]
            assert len(matching) == 1, (row, service["metadata"]["name"])
        for document in objects:
            if "template" in document.get("spec", {}) and "selector" in document["spec"]:
                selector = document["spec"]["selector"]["matchLabels"].items()
                assert selector <= document["spec"]["template"]["metadata"]["labels"].items(), row


def test_contents_name_the_migration_and_make_new_pods() -> None:
    def read_names(values: Values) -> tuple[str, str]:
        objects = render_objects(values)
        (job,) = select_kind(objects, "Job")
        deployment = select_kind(objects, "Deployment")[f"{FULL}-api"]
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        return job, str(annotations["checksum/settings"])

    migration, checksum = read_names(SERVERS)
    assert read_names(SERVERS | {"image": {"tag": "2"}})[0] != migration
    elsewhere = {"postgres": {"host": "elsewhere", "existingSecret": "store-postgres"}}
    assert read_names(SERVERS | elsewhere)[0] != migration
    assert read_names(SERVERS | {"settings": {"MAX_PREDICTIONS": 9}})[1] != checksum
    secret = MATRIX["secrets given as values"]
    changed = secret | {"postgres": secret["postgres"] | {"password": "new"}}
    assert read_names(secret)[1] != read_names(changed)[1]
    # OnFailure would restart a failed one, and delete its pod with the log at the last try
    (job,) = select_kind(render_objects(SERVERS), "Job").values()
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_names_of_releases_are_short_and_distinct() -> None:
    long = render_objects(SERVERS, name="a-release-whose-name-is-very-very-long-indeed")
    assert all(len(document["metadata"]["name"]) <= 63 for document in long)
    first, second = (
        {(entry["kind"], entry["metadata"]["name"]) for entry in render_objects(SERVERS, name=name)}
        for name in ("store", "other")
    )
    assert not first & second


def test_monitoring_objects_hold_the_files() -> None:
    values = MATRIX["everything that may be left out"]
    objects = render_objects(values)
    (rule,) = select_kind(objects, "PrometheusRule").values()
    assert [alert["alert"] for alert in rule["spec"]["groups"][0]["rules"]]
    for alert in rule["spec"]["groups"][0]["rules"]:
        # Only this installation, by the label of its ServiceMonitor.
        assert 'inference_store="spaces/store"' in alert["expr"]
        docs = "http://store-inferences-api.spaces.svc:8080/docs/"
        assert alert["annotations"]["runbook_url"].startswith(docs)
        assert '=~".*"' not in alert["expr"]
    dashboards = select_kind(objects, "ConfigMap")["store-inferences-dashboards"]["data"]
    assert set(dashboards) == {path.name for path in (CHART / "dashboards").glob("*.json")}
    for text in dashboards.values():
        assert json.loads(text)["panels"]
    (monitor,) = select_kind(objects, "ServiceMonitor").values()
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    every = select_kind(objects, "Service").values()
    chosen = [service for service in every if selector <= service["metadata"]["labels"].items()]
    assert len(chosen) == len(list_services(values))
    (endpoint,) = monitor["spec"]["endpoints"]
    port, label = endpoint["port"], {"targetLabel": "inference_store"}
    assert endpoint["relabelings"] == [label | {"replacement": "spaces/store"}]
    assert all(service["spec"]["ports"][0]["name"] == port for service in chosen)
    # Without it nothing sets the label: a rule that needs it would never fire, or always.
    values = {**MATRIX["trying out"], "metrics": {"prometheusRule": {"enabled": True}}}
    (rule,) = select_kind(render_objects(values), "PrometheusRule").values()
    for alert in rule["spec"]["groups"][0]["rules"]:
        assert 'inference_store=~".*"' in alert["expr"]
