"""Values: each is described and refused if misspelt, and what cannot work is refused by name."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm import describe

from inference_store.platform.settings import GROUPS, PREFIX, names, secrets_of
from tests.unit.golden.golden import WRITE

from .matrix import SERVERS, UPSTREAMS
from .rendering import CHART, Object, Refused, Values, list_containers, render_objects, select_pods

_SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())
_SETTINGS: Object = _SCHEMA["properties"]["settings"]["properties"]
_DEFAULTS: Values = yaml.safe_load((CHART / "values.yaml").read_text())
_DEV: Values = {"dev": {"enabled": True}}


def test_readme_and_schema_are_current() -> None:
    for path, text in describe.written().items():
        assert path.read_text() == text, f"{path} is stale: run python helm/describe.py"


def walk_schema(
    schema: Object = _SCHEMA, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Object]]:
    """Yield every group of values and every value, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        if (*path, name) != ("global",):  # Helm's own
            yield from walk_schema(inner, (*path, name))


def test_every_value_is_described_and_nothing_else_is_allowed() -> None:
    free = {"annotations", "labels", "podLabels", "nodeSelector", "traces", "roles", "resources"}
    free |= {"request", "podSecurityContext", "securityContext", "affinity", "podAnnotations"}
    free |= {"startupProbe", "livenessProbe", "readinessProbe", "commonLabels", "commonAnnotations"}
    assert sum("properties" in schema for _, schema in walk_schema()) > 40
    for path, schema in walk_schema():
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
            continue
        assert schema["description"], path
        assert schema["type"] != "array" or "items" in schema, path
        assert schema["type"] != "object" or path[-1] in free, path


@pytest.mark.real_helm
def test_rejects_misspelt_and_wrong_values_by_name() -> None:
    values: Values = {
        "imagePullSecrets": [{"nam": "a"}],
        "settings": {
            "max_keys": 1,
            "MAX_METADATA_BITES": 1,
            "INFERENCE_STORE_AUTH": "off",
            "API_TOKEN": "open sesame",
            "POSTGRES_DSN": "postgresql://a:b@c",
            "PROXY_REDACTION_KEY": "k",
            "PROXY_REGISTRY_KEY": "k",
        },
        "proxy": {
            "upstreams": [{"url": "http://a"}],
            "spool": {"mode": "on"},
            "terminationGracePeriodSeconds": 15,
        },
        "s3": {"presignedUrls": "no"},
        "api": {"replicas": "two", "ingress": {"hosts": [{"paths": []}]}, "service": {"port": 0}},
        "kafka": {"bootstrapServers": "k"},
        "postgres": {"port": 99999},
        "retention": {"intervalSeconds": 0, "keep": {"auditSeconds": "a year"}},
        "metrics": {"serviceMonitor": {"interval": "0s"}},
        "logs": {"level": "loud"},
        "traces": {"ENDPOINT": "x"},
        "image": {"misspelt": 1},
    }
    with pytest.raises(Refused) as refusal:
        render_objects(values)
    refused: dict[str, list[str]] = {}
    for line in str(refusal.value).splitlines():
        if match := re.match(r"\s*- at '(?:/([^']*))?': (.*)", line):
            place, why = match.groups(default="")
            refused.setdefault(place, []).append(why)
    for name in values["settings"]:
        assert f"'{name}'" in "".join(refused["settings"]), name
    for place, why in {
        "imagePullSecrets/0": "'nam' not allowed",
        "proxy/upstreams/0": "missing property 'name'",
        "proxy/spool/mode": "must be one of",
        "proxy/terminationGracePeriodSeconds": "minimum",
        "kafka/bootstrapServers": "does not match pattern",
        "postgres/port": "maximum",
        "api/service/port": "minimum",
        "retention/intervalSeconds": "minimum",
        "retention/keep/auditSeconds": "maxLength",
        "metrics/serviceMonitor/interval": "does not match pattern",
        "api/ingress/hosts/0": "missing property 'host'",
        "s3/presignedUrls": "must be one of",
        "api/replicas": "got string, want integer",
        "logs/level": "must be one of",
        "": "'ENDPOINT' does not match pattern '^OTEL_'",
        "image": "'misspelt' not allowed",
    }.items():
        assert why in "".join(refused[place]), place


# What the schema allows and cannot work: the values beside `dev`, and what helm says.
REFUSED: list[tuple[Values, str]] = [
    ({"dev": {}}, r"postgres\.host is empty.*dev\.enabled=true"),
    ({"postgres": SERVERS["postgres"], "dev": {}}, r"kafka\.bootstrapServers is empty"),
    (SERVERS | {"postgres": {"dsnKey": "uri"}}, r"postgres\.existingSecret, which is empty"),
    ({"s3": {"secretKey": "s"}}, r"s3\.accessKey is not"),
    ({"kafka": {"securityProtocol": "SASL_SSL"}}, r"set kafka\.sasl\.mechanism"),
    ({"api": {"ingress": {"enabled": True}}}, r"needs api\.ingress\.hosts"),
    ({"proxy": {"grpcRoute": {"enabled": True}}}, r"needs proxy\.grpcRoute\.parentRefs"),
    (
        {"kafka": {"sasl": {"password": "a", "existingSecret": "b"}}},
        r"kafka\.sasl\.password and kafka\.sasl\.existingSecret are both given",
    ),
    ({"s3": {"accessKey": "a", "existingSecret": "b"}}, r"s3\.existingSecret are both given"),
    ({"s3": {"ca": {"configMap": "a", "secret": "b"}}}, r"s3\.ca.*choose one"),
    ({"postgres": {"ca": {"secret": "a"}}}, r"postgres\.ca.*postgres\.tls=verify-full"),
    ({"kafka": {"ca": {"secret": "a"}}}, r"kafka\.ca.*SSL or SASL_SSL"),
    ({"auth": {"oidc": {"issuer": "https://a"}}}, r"needs auth\.oidc\.audience"),
    (
        {"auth": {"oidc": {"signIn": {"clientId": "a"}}}},
        r"clientId needs auth\.oidc\.issuer, and api\.publicUrl",
    ),
    (
        {"auth": {"oidc": {"signIn": {"deviceClientId": "a"}}}},
        r"deviceClientId needs auth\.oidc\.issuer",
    ),
    ({"auth": {"oidc": {"signIn": {"existingSecret": "a"}}}}, r"signIn\.clientId is not"),
    (
        {"s3": {"accessKey": "a", "webIdentity": {"roleArn": "b"}}},
        r"s3\.accessKey and s3\.webIdentity\.roleArn.*choose one",
    ),
    ({"proxy": {"enabled": True}}, r"proxy\.enabled needs proxy\.upstreams"),
    (
        {"proxy": {"existingConfigMap": "mine", "upstreams": [{"name": "a"}]}},
        r"proxy\.existingConfigMap stands in place of.*keep one",
    ),
    (
        {"proxy": {"enabled": True, "existingConfigMap": "mine"}},
        r"needs networkPolicy\.upstreamPorts",
    ),
    ({"proxy": {"test": {"request": {"a": 1}}}}, r"needs proxy\.test\.path"),
    ({"proxy": {"sidecar": {"enabled": True, "upstream": ""}}}, r"needs proxy\.sidecar\.upstream"),
    (
        {"proxy": {"enabled": True, "upstreams": UPSTREAMS, "registry": {"url": "http://a"}}},
        r"needs proxy\.registry\.existingSecret",
    ),
    ({"settings": {"API_PORT": 9}}, r"settings\.API_PORT: .* use api\.service\.port\."),
    ({"settings": {"KAFKA_TOPIC": "t"}}, r"KAFKA_TOPIC: .* use kafka\.topic\."),
    ({"settings": {"API_ADMIN_PORT": 9}}, 'API_ADMIN_PORT: .* to "9102" itself'),
    ({"settings": {"PROXY_PORT": 9}}, r"PROXY_PORT: .* use proxy\.service\.port\."),
    (
        {"settings": {"API_TLS_KEY_FILE": "/k"}, "api": {"tlsSecret": "tls"}},
        r"API_TLS_KEY_FILE: .* use api\.tlsSecret\.",
    ),
]


@pytest.mark.real_helm
def test_rejects_values_that_cannot_work() -> None:
    for values, sentence in REFUSED:
        with pytest.raises(Refused, match=sentence):
            render_objects(_DEV | values)


def test_images_are_of_one_release_and_still_published() -> None:
    images = [_DEFAULTS["dev"][name]["image"] for name in ("postgres", "kafka", "s3")]
    for image in images:
        assert not re.search("bitnami|minio", image)
        assert re.fullmatch(r"[^:@]+:(?!latest)[^:@]+(@sha256:[0-9a-f]{64})?", image)


@pytest.mark.real_helm
def test_accepts_every_setting_and_secrets_only_as_files() -> None:
    secrets = {name for group in GROUPS for name in secrets_of(group)}
    for name in sorted(names()):
        own = name.removeprefix(PREFIX)
        name_of_file = f"{own}_FILE" if own.lower() in secrets else own
        assert name_of_file in _SETTINGS, name_of_file
    assert len(_SETTINGS) == len(names())
    # also a file that the chart does not mount itself
    files = {"CERTIFICATE_KEY_FILE": "/keys/one", "KAFKA_CA_FILE": "/etc/company-ca/ca.crt"}
    render_objects(_DEV | {"settings": {"MAX_METADATA_BYTES": 1, **files}})


# Where each value arrives: every value of the schema is set, and found in what is rendered.

FILE = Path(__file__).with_name("reach.txt")
Chosen = dict[str, Any]
# What cannot be any text or number, and what stands in place of another value.
_CHOSEN: Chosen = {
    "nameOverride": "",
    "fullnameOverride": "",
    "api.ingress.tls": [{"secretName": "v.api.ingress.tls.v"}],
    "proxy.ingress.tls": [{"secretName": "v.proxy.ingress.tls.v"}],
    "kafka.bootstrapServers": "v.kafka.bootstrapServers.v:1",
    "metrics.serviceMonitor.interval": "7s",
    "postgres.tls": "verify-full",
    "kafka.securityProtocol": "SASL_SSL",
    "settings": {"MAX_METADATA_BYTES": 99},
    "traces": {"OTEL_EXPORTER_OTLP_ENDPOINT": "traces"},
    "extraManifests": [],
    "networkPolicy.enabled": True,
    "proxy.spool.mode": "all",
    "dev.enabled": False,
    "proxy.test.path": "/test",
}
# Each component has its own keys, node and account.
_OWN: Chosen = _CHOSEN | {
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "proxy.existingConfigMap": "",
    **{f"{server}.ca.secret": "" for server in ("postgres", "kafka", "s3")},
}
# All components share what there is.
_SHARED: Chosen = _CHOSEN | {
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "postgres.dsnKey": "",
    "postgres.readDsnKey": "",
    "image.digest": "",
    "migration.existingSecret": "",
    "auth.existingSecret": "",
    "s3.webIdentity.roleArn": "",
    "proxy.upstreams": [],
    "proxy.models": [],
    "proxy.kafka.username": "",
    "proxy.kafka.existingSecret": "",
    "proxy.kafka.clientCertificateSecret": "",
    "proxy.spool.existingClaim": "",
    **{f"{server}.ca.configMap": "" for server in ("postgres", "kafka", "s3")},
}
_NOT_OWN: Chosen = {
    "priorityClassName": "",
    **{f"podDisruptionBudget.{of}": None for of in ("enabled", "minAvailable", "maxUnavailable")},
    "autoscaling.enabled": False,
    "serviceAccount.create": False,
    "s3ExistingSecret": "",
    "nodeSelector": {},
    "tolerations": [],
    "affinity": {},
}
for _component in describe.COMPONENTS:
    _SHARED |= {f"{_component}.{name}": value for name, value in _NOT_OWN.items()}
_PASSWORDS = ("postgres.password", "kafka.sasl.password", "s3.accessKey", "s3.secretKey")


def list_values() -> Iterator[tuple[str, Object]]:
    """Yield every value with its path; `settings` is one."""
    for path, schema in walk_schema():
        is_value = "properties" not in schema and path[0] != "settings"
        if is_value or path == ("settings",):
            yield ".".join(path), schema


def make_value(schema: Object, path: str, number: int) -> Any:
    declared, text = schema.get("type", "object"), f"v.{path}.v"
    kinds = {declared} if isinstance(declared, str) else set(declared)
    if "enum" in schema:
        return next(choice for choice in reversed(schema["enum"]) if choice not in ("", False))
    if kinds == {"boolean"}:
        return True
    if "array" in kinds:
        return [make_value(schema["items"], path, number)]
    if "object" in kinds:
        own = dict.fromkeys(schema.get("required", ()), text)
        return {text: text, **own} if schema.get("additionalProperties", True) else own
    return number if {"integer", "number"} & kinds else text


def fill_values(chosen: Chosen, numbers: dict[str, int]) -> Values:
    """Set every value, to what is chosen or to what is found again."""
    values: Values = {}
    for path, schema in list_values():
        value = chosen[path] if path in chosen else make_value(schema, path, numbers[path])
        *groups, name = path.split(".")
        group = values
        for part in groups:
            group = group.setdefault(part, {})
        group |= {} if value is None else {name: value}
    return values


def list_leaves(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every name and value of an object, with the path to it; items go by their names."""
    if isinstance(document, dict):
        for name, inner in document.items():
            yield path, str(name)
            yield from list_leaves(inner, (*path, str(name)))
    elif isinstance(document, list):
        for item in document:
            named = item.get("name", "") if isinstance(item, dict) else ""
            yield from list_leaves(item, (*path, str(named)) if named else path)
    else:
        assert not isinstance(document, float), f"{path} has lost its digits: {document}"
        yield path, str(document)


def find_places(objects: list[Object]) -> Iterator[tuple[str, str, str]]:
    """Yield where values are found: the value's text or number, the place, whose object it is."""
    for document in objects:
        owner = document["metadata"].get("labels", {}).get("app.kubernetes.io/component", "")
        for path, leaf in list_leaves(document):
            for text, number in re.findall(r"v\.([\w.]+?)\.v\b|\b(\d{5,})\b", leaf):
                place = re.sub(r"(\.|^)v\.[\w.]+?\.v\b.*", "", ".".join(path))
                place = re.sub(r"([cC]ontainers)\.[\w-]+", r"\1", place)
                place = place.removeprefix("spec.template.").replace("valueFrom.secretKeyRef.", "")
                yield text or number, place, f"{document['kind']}/{owner}"


@pytest.mark.real_helm
def test_every_value_arrives_where_it_should() -> None:
    # a million and more would lose its digits in a template that is not careful
    numbers = {
        path: 37 * index + (20_011 if "maximum" in str(schema) else 1_000_003 + 2**20)
        for index, (path, schema) in enumerate(list_values())
    }
    assert len(set(numbers.values())) == len(numbers)
    no_passwords = dict.fromkeys(_PASSWORDS, "")
    every = fill_values({}, numbers)
    # The servers in the release, with passwords given as values.
    tried = {
        "dev": every["dev"],
        "postgres": {"password": every["postgres"]["password"]},
        "s3": {name: every["s3"][name] for name in ("accessKey", "secretKey")},
        "kafka": {"sasl": {"password": every["kafka"]["sasl"]["password"], "mechanism": "PLAIN"}},
    }
    found: dict[str, dict[str, set[str]]] = {}
    for values in (
        fill_values(_OWN | no_passwords, numbers),
        fill_values(_SHARED | no_passwords, numbers),
        tried,
    ):
        objects = render_objects(values)
        for value, place, owner in find_places(objects):
            found.setdefault(value, {}).setdefault(place, set()).add(owner)
        for name, pod in select_pods(objects).items():
            for container in list_containers(pod):
                variables = [variable["name"] for variable in container.get("env", ())]
                assert len(set(variables)) == len(variables), name
    lines = []
    for path, schema in list_values():
        places = found.get(path, {}) | found.get(str(numbers[path]), {})
        is_followed = "enum" not in schema and schema["type"] != "boolean"
        assert places or not is_followed or path in _CHOSEN, f"{path} arrives nowhere"
        lines += [path] * bool(places)
        lines += [f"  {place}: {' '.join(sorted(who))}" for place, who in sorted(places.items())]
    text = "\n".join(lines) + "\n"
    if os.environ.get(WRITE):
        FILE.write_text(text)
    assert text.splitlines() == FILE.read_text().splitlines()
