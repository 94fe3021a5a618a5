"""The objects of every installation: valid, restricted, and without dangling references."""

import json
import re
import subprocess

import pytest

from inference_store.platform.settings import PREFIX, names

from .matrix import MATRIX, SERVERS
from .rendering import (
    CHART,
    Object,
    Values,
    find_cache_folder,
    find_program,
    helm,
    render_objects,
    select_kind,
    select_pods,
)

pytestmark = pytest.mark.usefixtures("require_helm")
with_every_values = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
SERVICES = {"api": 9102, "ingester": 9101, "retention": 9103}
# Objects whose schemas come with an operator.
FOREIGN = ("ServiceMonitor", "PodMonitor", "PrometheusRule", "HTTPRoute")


def list_services(values: Values) -> dict[str, int]:
    """Return the services that values install, with their admin ports."""
    return SERVICES | ({"proxy": 9104} if values.get("proxy", {}).get("enabled") else {})


@with_every_values
def test_helm_lint_finds_no_errors(values: Values) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", values=values)


@with_every_values
def test_kubernetes_knows_every_field(values: Values) -> None:
    schemas = f"{find_cache_folder()}/schemas/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [str(find_program("kubeconform")), "-strict", "-summary", "-skip", ",".join(FOREIGN)]
    objects = render_objects(values)
    text = "\n---\n".join(json.dumps(document) for document in objects)
    done = subprocess.run(
        [*command, "-schema-location", schemas],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    foreign = [document for document in objects if document["kind"] in FOREIGN]
    assert f"Skipped: {len(foreign)}" in done.stdout


def test_retention_has_room_for_the_largest_part_of_an_export() -> None:
    pods = select_pods(render_objects({**SERVERS}))
    sizes = {
        name.rpartition("-")[2]: volume["emptyDir"]["sizeLimit"]
        for name, pod in pods.items()
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "tmp" and name.startswith("Deployment/")
    }
    # INFERENCE_STORE_EXPORT_PART_BYTES is 1 GiB at most, a part twice that, and on the disk twice
    assert (sizes["retention"], sizes["api"], sizes["ingester"]) == ("5Gi", "64Mi", "64Mi")


@with_every_values
def test_every_pod_passes_the_restricted_standard(values: Values) -> None:
    specs = select_pods(render_objects(values))
    assert len(specs) >= 5
    for name, pod in specs.items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        for container in spec["containers"] + spec.get("initContainers", []):
            closed = container["securityContext"]
            assert closed["allowPrivilegeEscalation"] is False, name
            assert closed["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name
            assert container["resources"]["requests"]["cpu"], name
        for volume in spec.get("volumes", []):
            kinds = set(volume) - {"name"}
            allowed = {"emptyDir", "configMap", "secret", "projected", "persistentVolumeClaim"}
            assert kinds <= allowed, name


@with_every_values
def test_no_container_can_write_to_its_root(values: Values) -> None:
    for name, pod in select_pods(render_objects(values)).items():
        containers = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        for container in containers:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name


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


@with_every_values
def test_no_service_account_has_a_token(values: Values) -> None:
    for name, account in select_kind(render_objects(values), "ServiceAccount").items():
        assert account["automountServiceAccountToken"] is False, name


@with_every_values
def test_every_setting_exists(values: Values) -> None:
    objects = render_objects(values)
    configs = select_kind(objects, "ConfigMap").values()
    data = [
        config["data"]
        for config in configs
        if any(name.startswith(PREFIX) for name in config["data"])
    ]
    assert sum(f"{PREFIX}AUTH" in settings for settings in data) == 1
    used = {name for settings in data for name in settings}
    for pod in select_pods(objects).values():
        for container in pod["spec"]["containers"]:
            used |= {variable["name"] for variable in container.get("env", [])}
    ours = {name.removeprefix(PREFIX) for name in used if name.startswith(PREFIX)}
    assert {PREFIX + name for name in ours} <= names()
    for name, value in ((name, value) for settings in data for name, value in settings.items()):
        assert value, f"{name} is set to nothing"
        assert "e+" not in value, f"{name} has lost its digits"


def test_sets_only_existing_settings_by_default() -> None:
    for values in (MATRIX["trying out"], SERVERS):
        (config,) = select_kind(render_objects(values), "ConfigMap").values()
        assert {name for name in config["data"] if name.startswith(PREFIX)} <= names()


@with_every_values
def test_no_secret_is_in_a_configmap(values: Values) -> None:
    config_maps = select_kind(render_objects(values), "ConfigMap")
    # A sidecar's patch has references: tests/chart/test_sidecar.py
    text = json.dumps(
        [config_map for name, config_map in config_maps.items() if not name.endswith("-patch")]
    )
    for secret in ("a 'quoted", "pa:ss", '"secret"', "PASSWORD", "API_TOKEN", "SECRET_KEY"):
        assert secret not in text


@with_every_values
def test_every_referenced_secret_exists(values: Values) -> None:
    objects = render_objects(values)
    secrets = select_kind(objects, "Secret").items()
    keys_of_secrets = {
        name: set(secret.get("data") or secret["stringData"]) for name, secret in secrets
    }
    existing = set(
        re.findall(r'"(?:existingSecret|s3ExistingSecret)": "([^"]+)"', json.dumps(values))
    )
    for name, pod in select_pods(objects).items():
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            for variable in container.get("env", []):
                if "valueFrom" in variable:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    is_rendered = reference["key"] in keys_of_secrets.get(reference["name"], ())
                    assert is_rendered or reference["name"] in existing, (name, variable)


@with_every_values
def test_every_mount_has_its_volume(values: Values) -> None:
    for name, pod in select_pods(render_objects(values)).items():
        claims = {"data"} if name.startswith("StatefulSet") else set()
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])} | claims
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounts <= volumes, name


@with_every_values
def test_services_have_probes_and_a_grace_period(values: Values) -> None:
    objects = render_objects(values)
    scheme = "HTTPS" if values.get("admin") else "HTTP"
    for name, port in list_services(values).items():
        deployments = select_kind(objects, "Deployment")
        (deployment,) = (
            candidate for key, candidate in deployments.items() if key.endswith(f"-{name}")
        )
        spec = deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert {"name": "admin", "containerPort": port} in container["ports"]
        for probe, path in (("livenessProbe", "live"), ("readinessProbe", "ready")):
            request = container[probe]["httpGet"]
            assert request == {"path": f"/health/{path}", "port": "admin", "scheme": scheme}
        assert spec["terminationGracePeriodSeconds"] > 30
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
        if name == "proxy":  # it does not use Postgres
            assert "initContainers" not in spec
        else:
            assert spec["initContainers"][0]["args"][:2] == ["migrate", "--check"]
        assert len(spec["topologySpreadConstraints"]) == 2


@with_every_values
def test_every_service_has_a_disruption_budget_that_lets_a_node_drain(values: Values) -> None:
    budgets = select_kind(render_objects(values), "PodDisruptionBudget").values()
    assert len(budgets) == len(list_services(values))
    assert all(budget["spec"]["maxUnavailable"] == 1 for budget in budgets)


@with_every_values
def test_selectors_select_the_pods_of_one_component(values: Values) -> None:
    objects = render_objects(values)
    labels = {name: pod["metadata"]["labels"] for name, pod in select_pods(objects).items()}
    for service in select_kind(objects, "Service").values():
        selector = service["spec"]["selector"].items()
        matching = [name for name, own in labels.items() if selector <= own.items()]
        assert len(matching) == 1, service["metadata"]["name"]
    for document in objects:
        if "template" in document.get("spec", {}) and "selector" in document["spec"]:
            selector = document["spec"]["selector"]["matchLabels"].items()
            assert selector <= document["spec"]["template"]["metadata"]["labels"].items()


def render_job(values: Values) -> Object:
    (rendered,) = select_kind(render_objects(values), "Job").values()
    return rendered


def test_name_of_the_migration_depends_on_its_contents() -> None:
    same = render_job(SERVERS)["metadata"]["name"]
    assert render_job(SERVERS)["metadata"]["name"] == same
    assert render_job(SERVERS | {"image": {"tag": "2"}})["metadata"]["name"] != same
    other = SERVERS | {"postgres": {"host": "elsewhere", "existingSecret": "store-postgres"}}
    assert render_job(other)["metadata"]["name"] != same


def test_failed_migration_keeps_its_log() -> None:
    """OnFailure would restart the container, and delete its pod at the last try."""
    assert render_job(SERVERS)["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_changed_setting_makes_new_pods() -> None:
    def checksum(values: Values) -> str:
        deployment = select_kind(render_objects(values), "Deployment")["store-inference-store-api"]
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/settings"])

    assert checksum(SERVERS) == checksum(SERVERS)
    assert checksum(SERVERS) != checksum(SERVERS | {"settings": {"MAX_JSON_DEPTH": 9}})
    secret = MATRIX["secrets given as values"]
    changed = secret | {"postgres": {"host": "db", "password": "new"}}
    assert checksum(secret) != checksum(changed)


def test_names_of_releases_are_short_and_distinct() -> None:
    long = render_objects(SERVERS, name="a-release-whose-name-is-very-very-long-indeed")
    assert all(len(document["metadata"]["name"]) <= 63 for document in long)
    first, second = (
        {(entry["kind"], entry["metadata"]["name"]) for entry in render_objects(SERVERS, name=name)}
        for name in ("one", "other")
    )
    assert not first & second


def test_component_may_have_its_own_s3_keys() -> None:
    objects = render_objects(MATRIX["tokens instead of passwords"])
    text = {name: json.dumps(pod) for name, pod in select_pods(objects).items()}
    assert "read-only-s3" in text["Deployment/store-inference-store-ingester"]
    assert "read-only-s3" not in text["Deployment/store-inference-store-retention"]
    accounts = select_kind(objects, "ServiceAccount")
    annotations = accounts["store-inference-store-retention"]["metadata"]["annotations"]
    assert annotations == {"role": "may-delete"}


def test_rules_without_our_service_monitor_match_every_installation() -> None:
    """Without it nothing sets the label: a rule that needs it would never fire, or always."""
    values = {**MATRIX["trying out"], "metrics": {"prometheusRule": {"enabled": True}}}
    (rule,) = select_kind(render_objects(values), "PrometheusRule").values()
    for alert in rule["spec"]["groups"][0]["rules"]:
        assert 'inference_store=~".*"' in alert["expr"]


def test_monitoring_objects_hold_the_files() -> None:
    values = MATRIX["everything that may be left out"]
    objects = render_objects(values)
    (rule,) = select_kind(objects, "PrometheusRule").values()
    assert [alert["alert"] for alert in rule["spec"]["groups"][0]["rules"]]
    for alert in rule["spec"]["groups"][0]["rules"]:
        # Only this installation, by the label of its ServiceMonitor.
        assert 'inference_store="spaces/store"' in alert["expr"]
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
