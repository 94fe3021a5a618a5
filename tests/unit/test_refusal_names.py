"""Every name in the words of a refusal is one that its reader knows."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inference_store.api.answer import list_kinds

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services" / "inference_store"
OPENAPI = ROOT / "docs" / "reference" / "openapi.json"


def _iterate_names(schema: Any) -> Iterator[str]:
    """Yield the names of all fields, parameters and values in a part of the OpenAPI."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from [schema["name"]] if isinstance(schema.get("name"), str) else []
        yield from (word for word in schema.get("enum", []) if isinstance(word, str))
        for part in schema.values():
            yield from _iterate_names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _iterate_names(part)


def _iterate_refusals() -> Iterator[tuple[str, str]]:
    """Yield the words of each refusal in the services, with its place."""
    kinds = {"Fault", "Refusal", *(kind.__name__ for kind in list_kinds())}
    for path in sorted(SERVICES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in kinds:
                    pass
                case ast.Assign(targets=[ast.Name(id="message" | "detail" | "why")]):
                    pass
                case _:
                    continue
            texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield place, " ".join(text for text in texts if isinstance(text, str))


def test_refusals_name_no_internals() -> None:
    of_examples = {"frame_number"}
    known = of_examples | set(_iterate_names(json.loads(OPENAPI.read_text())))
    refusals = list(_iterate_refusals())
    assert len(refusals) > 100
    for place, words in refusals:
        for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", words):
            assert name in known, f"{place} names {name}, which is nothing of the api"
