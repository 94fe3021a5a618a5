"""Write JSON schemas for kubeconform from a Kubernetes OpenAPI document on standard input.

    python3 schemas.py FOLDER < swagger.json
    kubeconform -strict -schema-location 'FOLDER/{{.ResourceKind}}{{.KindSuffix}}.json' ...

The document is k8s.io/kubernetes's own api/openapi-spec/swagger.json.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

_REFERENCE = re.compile(r'"\$ref": "#/definitions/([^"]+)"')
Schemas = dict[str, Any]


def strict(schema: Any) -> Any:
    """The schema with unknown properties refused."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "int-or-string":
        return {"type": ["string", "integer"]}
    own = {name: part for name, part in schema.items() if not name.startswith("x-kubernetes")}
    result = {name: strict(part) for name, part in own.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        result["additionalProperties"] = False
    return result


def reached(name: str, definitions: Schemas, seen: Schemas) -> Schemas:
    """The definitions that one needs, itself among them."""
    if name not in seen:
        seen[name] = definitions[name]
        for other in _REFERENCE.findall(json.dumps(definitions[name])):
            reached(other, definitions, seen)
    return seen


def write(source: Schemas, folder: Path) -> None:
    """One file for each kind of object."""
    folder.mkdir(parents=True, exist_ok=True)
    definitions = {name: strict(schema) for name, schema in source.items()}
    for name, schema in source.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            group = kind["group"].split(".")[0]
            parts = (kind["kind"], group, kind["version"])
            whole = {
                "$ref": f"#/definitions/{name}",
                "definitions": reached(name, definitions, {}),
            }
            file = "-".join(filter(None, parts)).lower() + ".json"
            (folder / file).write_text(json.dumps(whole))


if __name__ == "__main__":
    write(json.load(sys.stdin)["definitions"], Path(sys.argv[1]))
