"""Values: misspelt ones are refused by name, and their documentation is current."""

import json
import re

import pytest
import yaml
from helm import describe

from inference_store.platform.settings import GROUPS, PREFIX, names, secrets_of

from .matrix import MATRIX, SERVERS, UPSTREAMS
from .rendering import CHART, Refused, Values, render_objects

_SETTINGS = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]
_DEV: Values = {"dev": {"enabled": True}}


def test_readme_and_schema_are_current() -> None:
    for path, text in describe.written().items():
        assert path.read_text() == text, f"{path} is stale: run python helm/describe.py"


def test_rejects_a_value_without_a_description() -> None:
    with pytest.raises(ValueError, match=r"says nothing of a\.b"):
        describe.read("a:\n  b: 1\n")


def test_rejects_a_list_without_a_schema() -> None:
    with pytest.raises(ValueError, match="a needs an @schema"):
        describe.read("# Words.\na: []\n")


def list_groups(values: Values, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """List every group of values, with the root; maps without fixed names are left out."""
    free = {
        "settings",
        "traces",
        "annotations",
        "labels",
        "podLabels",
        "roles",
        "resources",
        "request",
        "podSecurityContext",
        "securityContext",
    }
    inner = [
        group
        for name, value in values.items()
        if isinstance(value, dict) and name not in free | {"nodeSelector", "affinity"}
        for group in list_groups(value, (*path, name))
    ]
    return [path, *inner]


_DEFAULTS: Values = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.usefixtures("require_helm")
@pytest.mark.parametrize("path", list_groups(_DEFAULTS), ids=".".join)
def test_rejects_a_misspelt_value(path: tuple[str, ...]) -> None:
    values: Values = {"misspelt": 1}
    for name in reversed(path):
        values = {name: values}
    with pytest.raises(Refused, match="'misspelt' not allowed"):
        render_objects(values)


@pytest.mark.usefixtures("require_helm")
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, r"postgres\.host is empty.*dev\.enabled=true"),
        ({"postgres": SERVERS["postgres"]}, r"kafka\.bootstrapServers is empty"),
        (SERVERS | {"postgres": {"dsnKey": "uri"}}, r"postgres\.existingSecret, which is empty"),
        (_DEV | {"s3": {"secretKey": "s"}}, r"s3\.accessKey is not"),
        (_DEV | {"kafka": {"securityProtocol": "SASL_SSL"}}, r"set kafka\.sasl\.mechanism"),
        (_DEV | {"ingress": {"enabled": True}}, r"needs ingress\.hosts"),
        (
            _DEV | {"ingress": {"enabled": True, "hosts": ["a"], "tlsSecret": "b", "tls": [{}]}},
            r"keep ingress\.tls",
        ),
        (_DEV | {"ingress": {"hosts": [{"paths": []}]}}, "missing property 'host'"),
        (_DEV | {"imagePullSecrets": [{"nam": "a"}]}, "imagePullSecrets"),
        (_DEV | {"httpRoute": {"enabled": True}}, r"needs httpRoute\.parentRefs"),
        (_DEV | {"s3": {"ca": {"configMap": "a", "secret": "b"}}}, r"s3\.ca.*choose one"),
        (_DEV | {"postgres": {"ca": {"secret": "a"}}}, r"postgres\.ca.*postgres\.tls=verify-full"),
        (_DEV | {"kafka": {"ca": {"secret": "a"}}}, r"kafka\.ca.*SSL or SASL_SSL"),
        (_DEV | {"auth": {"oidc": {"issuer": "https://a"}}}, r"needs auth\.oidc\.audience"),
        (
            _DEV | {"auth": {"oidc": {"signIn": {"clientId": "a"}}}},
            r"clientId needs auth\.oidc\.issuer, and api\.publicUrl",
        ),
        (
            _DEV | {"auth": {"oidc": {"signIn": {"deviceClientId": "a"}}}},
            r"deviceClientId needs auth\.oidc\.issuer",
        ),
        (
            _DEV | {"auth": {"oidc": {"signIn": {"existingSecret": "a"}}}},
            r"signIn\.clientId is not",
        ),
        (
            _DEV | {"s3": {"accessKey": "a", "webIdentity": {"roleArn": "b"}}},
            r"s3\.accessKey and s3\.webIdentity\.roleArn.*choose one",
        ),
        (_DEV | {"proxy": {"enabled": True}}, r"proxy\.enabled needs proxy\.upstreams"),
        (
            _DEV | {"proxy": {"existingConfigMap": "mine", "upstreams": [{"name": "a"}]}},
            r"proxy\.existingConfigMap stands in place of.*keep one",
        ),
        (
            _DEV | {"proxy": {"enabled": True, "existingConfigMap": "mine"}},
            r"needs networkPolicy\.upstreamPorts",
        ),
        (_DEV | {"proxy": {"test": {"request": {"a": 1}}}}, r"needs proxy\.test\.path"),
        (
            _DEV | {"proxy": {"sidecar": {"enabled": True, "upstream": ""}}},
            r"needs proxy\.sidecar\.upstream",
        ),
        (_DEV | {"proxy": {"upstreams": [{"url": "http://a"}]}}, "missing property 'name'"),
        (_DEV | {"proxy": {"spool": {"mode": "on"}}}, "/proxy/spool/mode"),
        (_DEV | {"proxy": {"terminationGracePeriodSeconds": 15}}, "terminationGracePeriod"),
        (_DEV | {"settings": {"PROXY_REDACTION_KEY": "k"}}, "PROXY_REDACTION_KEY"),
        (_DEV | {"settings": {"PROXY_REGISTRY_KEY": "k"}}, "PROXY_REGISTRY_KEY"),
        (
            SERVERS
            | {"proxy": {"enabled": True, "upstreams": UPSTREAMS, "registry": {"url": "http://a"}}},
            r"needs proxy\.registry\.existingSecret",
        ),
        (_DEV | {"s3": {"presignedUrls": "no"}}, "/s3/presignedUrls"),
        (_DEV | {"api": {"replicas": "two"}}, r"/api/replicas.*got string, want integer"),
        (_DEV | {"logs": {"level": "loud"}}, r"/logs/level.*must be one of"),
        (_DEV | {"settings": {"max_keys": 1}}, "/settings.*'max_keys' not allowed"),
        (_DEV | {"settings": {"MAX_METADATA_BITES": 1}}, "'MAX_METADATA_BITES' not allowed"),
        (_DEV | {"settings": {"INFERENCE_STORE_AUTH": "off"}}, "INFERENCE_STORE_AUTH"),
        (_DEV | {"settings": {"API_TOKEN": "open sesame"}}, "'API_TOKEN' not allowed"),
        (_DEV | {"settings": {"POSTGRES_DSN": "postgresql://a:b@c"}}, "POSTGRES_DSN"),
        (_DEV | {"settings": {"API_PORT": 9}}, r"settings\.API_PORT: .* use api\.service\.port\."),
        (_DEV | {"settings": {"KAFKA_TOPIC": "t"}}, r"KAFKA_TOPIC: .* use kafka\.topic\."),
        (_DEV | {"settings": {"API_ADMIN_PORT": 9}}, 'API_ADMIN_PORT: .* to "9102" itself'),
        (_DEV | {"settings": {"PROXY_PORT": 9}}, r"PROXY_PORT: .* use proxy\.service\.port\."),
        (
            _DEV | {"settings": {"API_TLS_KEY_FILE": "/k"}, "api": {"tlsSecret": "tls"}},
            r"API_TLS_KEY_FILE: .* use api\.tlsSecret\.",
        ),
        (_DEV | {"traces": {"ENDPOINT": "x"}}, "ENDPOINT"),
    ],
)
def test_rejects_values_that_cannot_work(values: Values, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        render_objects(values)


def test_notes_warn_of_development_servers() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    assert "WARNING: dev.enabled is true" in notes
    assert "WARNING: auth.enabled is false" in notes


def test_images_are_pinned_by_digest_and_none_is_bitnamis() -> None:
    images = [_DEFAULTS["dev"][name]["image"] for name in ("postgres", "kafka", "s3")]
    for image in images:
        assert "bitnami" not in image
        assert re.fullmatch(r"[^:@]+:(?!latest@)[^:@]+@sha256:[0-9a-f]{64}", image)


def test_matrix_sets_every_group() -> None:
    """Every group of values is tested with something in it."""
    tried = {name for values in MATRIX.values() for name in values}
    assert set(_DEFAULTS) - tried <= {"fullnameOverride", "logs"}


@pytest.mark.usefixtures("require_helm")
def test_accepts_every_setting_and_secrets_only_as_files() -> None:
    secrets = {name for group in GROUPS for name in secrets_of(group)}
    for name in sorted(names()):
        own = name.removeprefix(PREFIX)
        name_of_file = f"{own}_FILE" if own.lower() in secrets else own
        assert name_of_file in _SETTINGS["properties"], name_of_file
    assert len(_SETTINGS["properties"]) == len(names())
    render_objects(
        _DEV | {"settings": {"MAX_METADATA_BYTES": 1, "CERTIFICATE_KEY_FILE": "/keys/one"}}
    )


def test_names_the_value_for_a_setting() -> None:
    folder = CHART / "templates"
    text = (folder / "_given_twice.tpl").read_text()
    documented = dict(re.findall(r"^([A-Z0-9_]+): ([\w.]+)$", text, re.MULTILINE))
    both = (folder / "_settings.tpl").read_text() + (folder / "proxy" / "_proxy.tpl").read_text()
    rendered = set(re.findall(r'set \$(?:s|own) "([A-Z0-9_]+)"', both))
    fixed = {"API_HOST", "POSTGRES_DSN", "PROXY_REGISTRY_FILE", "PROXY_SPOOL_DIRECTORY"}
    assert rendered - set(documented) == fixed
    for name, path in documented.items():
        assert name in _SETTINGS["properties"], name
        section = _DEFAULTS
        for part in path.split("."):
            assert part in section, path
            section = section[part]


@pytest.mark.usefixtures("require_helm")
def test_accepts_a_file_that_the_chart_does_not_mount() -> None:
    render_objects(_DEV | {"settings": {"KAFKA_CA_FILE": "/etc/company-ca/ca.crt"}})
