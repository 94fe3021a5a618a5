"""Checks of answers against the models of the OpenAPI document."""

import json

from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel


def check_answer(model: type[BaseModel], content: bytes) -> None:
    """Check that an answer has the fields of a model's JSON Schema, and no others."""
    schema = model.model_json_schema(mode="serialization")
    for definition in (schema, *schema.get("$defs", {}).values()):
        if "properties" in definition:
            definition["additionalProperties"] = False
    faults = Draft202012Validator(schema).iter_errors(json.loads(content))
    assert [str(fault) for fault in faults] == []
