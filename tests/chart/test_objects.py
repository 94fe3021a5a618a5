"""The objects for every way to install: valid, restricted, and wired to what exists."""

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
    cache_folder,
    helm,
    of_kind,
    pods,
    program,
    template,
)

pytestmark = pytest.mark.usefixtures("helm_is_here")
every_way = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
SERVICES = {"api": 9102, "ingester": 9101, "retention": 9103}
# Objects whose schemas come with an operator.
FOREIGN = ("ServiceMonitor", "PodMonitor", "PrometheusRule", "HTTPRoute")


def services(values: Values) -> dict[str, int]:
    """The services that these values install, with their admin ports."""
    return SERVICES | ({"proxy": 9104} if values.get("proxy", {}).get("enabled") else {})


@every_way
def test_helm_finds_nothing_wrong(values: Values) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", values=values)


@every_way
def test_kubernetes_knows_every_field(values: Values) -> None:
    schemas = f"{cache_folder()}/schemas/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [str(program("kubeconform")), "-strict", "-summary", "-skip", ",".join(FOREIGN)]
    objects = template(values)
    text = "\n---\n".join(json.dumps(one) for one in objects)
    done = subprocess.run(
        [*command, "-schema-location", schemas],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    foreign = [one for one in objects if one["kind"] in FOREIGN]
    assert f"Skipped: {len(foreign)}" in done.stdout


@every_way
def test_every_pod_passes_the_restricted_standard(values: Values) -> None:
    found = pods(template(values))
    assert len(found) >= 5
    for name, pod in found.items():
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


@every_way
def test_no_container_can_write_to_its_root(values: Values) -> None:
    for name, pod in pods(template(values)).items():
        containers = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        for container in containers:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name


def test_servers_for_trying_out_write_where_their_images_do() -> None:
    """Kafka's image writes its configuration and its logs, Postgres' its socket."""
    found = of_kind(template(MATRIX["trying out"]), "StatefulSet")
    written = {
        name.rpartition("-")[2]: {
            mount["mountPath"]
            for mount in each["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        }
        for name, each in found.items()
    }
    assert written == {
        "postgres": {"/var/lib/postgresql/data", "/var/run/postgresql", "/tmp"},
        "kafka": {"/var/lib/kafka/data", "/opt/kafka/config", "/opt/kafka/logs", "/tmp"},
        "s3": {"/data", "/tmp"},
    }


@every_way
def test_no_account_has_a_token(values: Values) -> None:
    for name, account in of_kind(template(values), "ServiceAccount").items():
        assert account["automountServiceAccountToken"] is False, name


@every_way
def test_every_setting_exists(values: Values) -> None:
    objects = template(values)
    configs = of_kind(objects, "ConfigMap").values()
    data = [one["data"] for one in configs if any(name.startswith(PREFIX) for name in one["data"])]
    assert sum(f"{PREFIX}AUTH" in one for one in data) == 1
    given = {name for one in data for name in one}
    for pod in pods(objects).values():
        for container in pod["spec"]["containers"]:
            given |= {one["name"] for one in container.get("env", [])}
    ours = {name.removeprefix(PREFIX) for name in given if name.startswith(PREFIX)}
    assert {PREFIX + name for name in ours} <= names()
    for name, value in ((name, value) for one in data for name, value in one.items()):
        assert value, f"{name} is set to nothing"
        assert "e+" not in value, f"{name} has lost its digits"


def test_without_a_word_only_todays_settings_are_set() -> None:
    for values in (MATRIX["trying out"], SERVERS):
        (config,) = of_kind(template(values), "ConfigMap").values()
        assert {name for name in config["data"] if name.startswith(PREFIX)} <= names()


@every_way
def test_no_secret_is_in_a_configmap(values: Values) -> None:
    found = of_kind(template(values), "ConfigMap")
    # A sidecar's patch has references: tests/chart/test_sidecar.py
    text = json.dumps([one for name, one in found.items() if not name.endswith("-patch")])
    for secret in ("a 'quoted", "pa:ss", '"secret"', "PASSWORD", "API_TOKEN", "SECRET_KEY"):
        assert secret not in text


@every_way
def test_every_secret_that_is_asked_for_is_named_or_made(values: Values) -> None:
    objects = template(values)
    secrets = of_kind(objects, "Secret").items()
    made = {name: set(one.get("data") or one["stringData"]) for name, one in secrets}
    named = set(re.findall(r'"(?:existingSecret|s3ExistingSecret)": "([^"]+)"', json.dumps(values)))
    for name, pod in pods(objects).items():
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            for one in container.get("env", []):
                if "valueFrom" in one:
                    place = one["valueFrom"]["secretKeyRef"]
                    found = place["key"] in made.get(place["name"], ())
                    assert found or place["name"] in named, (name, one)


@every_way
def test_every_mount_has_its_volume(values: Values) -> None:
    for name, pod in pods(template(values)).items():
        claims = {"data"} if name.startswith("StatefulSet") else set()
        volumes = {one["name"] for one in pod["spec"].get("volumes", [])} | claims
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            mounts = {one["name"] for one in container.get("volumeMounts", [])}
            assert mounts <= volumes, name


@every_way
def test_a_service_is_probed_at_its_admin_port_and_ends_in_peace(values: Values) -> None:
    objects = template(values)
    scheme = "HTTPS" if values.get("admin") else "HTTP"
    for name, port in services(values).items():
        found = of_kind(objects, "Deployment")
        (deployment,) = (one for key, one in found.items() if key.endswith(f"-{name}"))
        spec = deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert {"name": "admin", "containerPort": port} in container["ports"]
        for probe, path in (("livenessProbe", "live"), ("readinessProbe", "ready")):
            asked = container[probe]["httpGet"]
            assert asked == {"path": f"/health/{path}", "port": "admin", "scheme": scheme}
        assert spec["terminationGracePeriodSeconds"] > 30
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
        if name == "proxy":  # it knows no Postgres
            assert "initContainers" not in spec
        else:
            assert spec["initContainers"][0]["args"][:2] == ["migrate", "--check"]
        assert len(spec["topologySpreadConstraints"]) == 2


@every_way
def test_every_service_has_a_disruption_budget_that_lets_a_node_drain(values: Values) -> None:
    budgets = of_kind(template(values), "PodDisruptionBudget").values()
    assert len(budgets) == len(services(values))
    assert all(one["spec"]["maxUnavailable"] == 1 for one in budgets)


@every_way
def test_selectors_select_the_pods_of_one_component(values: Values) -> None:
    objects = template(values)
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(objects).items()}
    for service in of_kind(objects, "Service").values():
        wanted = service["spec"]["selector"].items()
        matching = [name for name, own in labels.items() if wanted <= own.items()]
        assert len(matching) == 1, service["metadata"]["name"]
    for one in objects:
        if "template" in one.get("spec", {}) and "selector" in one["spec"]:
            wanted = one["spec"]["selector"]["matchLabels"].items()
            assert wanted <= one["spec"]["template"]["metadata"]["labels"].items()


def job(values: Values) -> Object:
    (found,) = of_kind(template(values), "Job").values()
    return found


def test_the_migrations_name_follows_from_what_it_runs() -> None:
    same = job(SERVERS)["metadata"]["name"]
    assert job(SERVERS)["metadata"]["name"] == same
    assert job(SERVERS | {"image": {"tag": "2"}})["metadata"]["name"] != same
    other = SERVERS | {"postgres": {"host": "elsewhere", "existingSecret": "store-postgres"}}
    assert job(other)["metadata"]["name"] != same


def test_a_migration_that_fails_keeps_its_log() -> None:
    """OnFailure starts the container anew, and deletes its pod at the last try."""
    assert job(SERVERS)["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_a_changed_setting_makes_new_pods() -> None:
    def checksum(values: Values) -> str:
        found = of_kind(template(values), "Deployment")["store-inference-store-api"]
        return str(found["spec"]["template"]["metadata"]["annotations"]["checksum/settings"])

    assert checksum(SERVERS) == checksum(SERVERS)
    assert checksum(SERVERS) != checksum(SERVERS | {"settings": {"MAX_JSON_DEPTH": 9}})
    secret = MATRIX["secrets given as values"]
    changed = secret | {"postgres": {"host": "db", "password": "new"}}
    assert checksum(secret) != checksum(changed)


def test_names_of_releases_do_not_collide_or_grow_too_long() -> None:
    long = template(SERVERS, name="a-release-whose-name-is-very-very-long-indeed")
    assert all(len(one["metadata"]["name"]) <= 63 for one in long)
    one, other = (
        {(each["kind"], each["metadata"]["name"]) for each in template(SERVERS, name=name)}
        for name in ("one", "other")
    )
    assert not one & other


def test_a_component_may_have_s3_keys_of_its_own() -> None:
    objects = template(MATRIX["tokens instead of passwords"])
    text = {name: json.dumps(pod) for name, pod in pods(objects).items()}
    assert "read-only-s3" in text["Deployment/store-inference-store-ingester"]
    assert "read-only-s3" not in text["Deployment/store-inference-store-retention"]
    accounts = of_kind(objects, "ServiceAccount")
    annotations = accounts["store-inference-store-retention"]["metadata"]["annotations"]
    assert annotations == {"role": "may-delete"}


def test_rules_without_our_service_monitor_look_at_every_installation() -> None:
    """Nothing sets the label then: a rule that asked for it would be silent, or always fire."""
    values = {**MATRIX["trying out"], "metrics": {"prometheusRule": {"enabled": True}}}
    (rule,) = of_kind(template(values), "PrometheusRule").values()
    for each in rule["spec"]["groups"][0]["rules"]:
        assert 'inference_store=~".*"' in each["expr"]


def test_monitoring_objects_hold_the_files() -> None:
    values = MATRIX["everything that may be left out"]
    objects = template(values)
    (rule,) = of_kind(objects, "PrometheusRule").values()
    assert [each["alert"] for each in rule["spec"]["groups"][0]["rules"]]
    for each in rule["spec"]["groups"][0]["rules"]:
        # of this installation alone, as its ServiceMonitor labels it
        assert 'inference_store="spaces/store"' in each["expr"]
        assert '=~".*"' not in each["expr"]
    dashboards = of_kind(objects, "ConfigMap")["store-inferences-dashboards"]["data"]
    assert set(dashboards) == {path.name for path in (CHART / "dashboards").glob("*.json")}
    for text in dashboards.values():
        assert json.loads(text)["panels"]
    (monitor,) = of_kind(objects, "ServiceMonitor").values()
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    every = of_kind(objects, "Service").values()
    chosen = [one for one in every if wanted <= one["metadata"]["labels"].items()]
    assert len(chosen) == len(services(values))
    (endpoint,) = monitor["spec"]["endpoints"]
    port, label = endpoint["port"], {"targetLabel": "inference_store"}
    assert endpoint["relabelings"] == [label | {"replacement": "spaces/store"}]
    assert all(one["spec"]["ports"][0]["name"] == port for one in chosen)
