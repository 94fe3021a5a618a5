"""Where each value arrives: every value of the schema is set, and found in what is rendered.

reach.txt has below each value the place in the objects, and whose objects these are. Write it again
after a change of the chart: INFERENCE_STORE_TEST_WRITE_GOLDEN=1 pytest tests/chart/test_reach.py
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helm import describe

from tests.unit.golden.golden import WRITE

from .rendering import CHART, Object, Values, list_containers, render_objects, select_pods

FILE = Path(__file__).with_name("reach.txt")
SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())
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


def list_values(schema: Object = SCHEMA, path: str = "") -> Iterator[tuple[str, Object]]:
    """Yield every value with its path; `settings` is one."""
    for name, inner in schema["properties"].items():
        own = f"{path}.{name}" if path else name
        if "properties" in inner and own != "settings":
            yield from list_values(inner, own)
        elif own != "global":  # Helm's own
            yield own, inner


def make_value(schema: Object, path: str, number: int) -> Any:
    """Return a value that is found again."""
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


@pytest.mark.usefixtures("require_helm")
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
