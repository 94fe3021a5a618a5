"""Write JSON schemas for kubeconform from a Kubernetes OpenAPI document on standard input.

    python3 schemas.py FOLDER < swagger.json
    kubeconform -strict -schema-location 'FOLDER/{{.ResourceKind}}{{.KindSuffix}}.json' ...

The document is api/openapi-spec/swagger.json of k8s.io/kubernetes.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

_REFERENCE = re.compile(r'"\$ref": "#/definitions/([^"]+)"')
Schemas = dict[str, Any]


def make_strict(schema: Any) -> Any:
    """Return a schema that refuses unknown properties."""
    if isinstance(schema, list):
        return [make_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "int-or-string":
        return {"type": ["string", "integer"]}
    own = {name: part for name, part in schema.items() if not name.startswith("x-kubernetes")}
    result = {name: make_strict(part) for name, part in own.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        result["additionalProperties"] = False
    return result


def collect_definitions(name: str, definitions: Schemas, collected: Schemas) -> Schemas:
    if name not in collected:
        collected[name] = definitions[name]
        for other in _REFERENCE.findall(json.dumps(definitions[name])):
            collect_definitions(other, definitions, collected)
    return collected


def write_schemas(source: Schemas, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    definitions = {name: make_strict(schema) for name, schema in source.items()}
    for name, schema in source.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            group = kind["group"].split(".")[0]
            parts = (kind["kind"], group, kind["version"])
            whole = {
                "$ref": f"#/definitions/{name}",
                "definitions": collect_definitions(name, definitions, {}),
            }
            file = "-".join(filter(None, parts)).lower() + ".json"
            (folder / file).write_text(json.dumps(whole))


if __name__ == "__main__":
    write_schemas(json.load(sys.stdin)["definitions"], Path(sys.argv[1]))
