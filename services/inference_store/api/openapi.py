"""Completes the OpenAPI: the schema of refusals, authentication, and the needs of each route."""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from inference_store.platform.settings import AccessSettings

from .access import EXTENSION, Over, read_needs
from .http import NDJSON
from .problems import Problem

BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
"""Bytes, as OpenAPI has them."""
_REF = "#/components/schemas/{model}"
_OVER = {
    Over.MODEL: "the model",
    Over.PROJECT: "the whole project, also the models to come",
    Over.SOME: "some model; the answer is narrowed to what it was given over",
    Over.EVERYTHING: "everything",
}


def complete_openapi(
    app: FastAPI, settings: AccessSettings, kinds: Sequence[type[BaseModel]]
) -> None:
    """Add to the OpenAPI what FastAPI does not know. `kinds`: schemas of parts of answers."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            _add_kinds(schema["components"]["schemas"], kinds)
            _add_security(schema, settings)
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def make_ref(kind: type[BaseModel]) -> str:
    """Return the reference to a schema."""
    return _REF.format(model=kind.__name__)


def _add_kinds(schemas: dict[str, Any], kinds: Sequence[type[BaseModel]]) -> None:
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    parts: list[type[BaseModel]] = [Problem, *kinds]
    for kind in parts:
        ours = models_json_schema([(kind, "serialization")], ref_template=_REF)[1]
        schemas.update(ours["$defs"])


def _add_security(schema: dict[str, Any], settings: AccessSettings) -> None:
    schemes = {} if settings.auth == "off" else _list_schemes(settings)
    if schemes:
        schema["components"]["securitySchemes"] = schemes
    for item in schema["paths"].values():
        for operation in item.values():
            if EXTENSION in operation:
                operation["description"] = _describe(operation)
                if schemes:
                    operation["security"] = [{name: []} for name in schemes]


def _list_schemes(settings: AccessSettings) -> dict[str, Any]:
    key = {"type": "http", "scheme": "bearer", "description": "An API key, isk_…"}
    if settings.oidc_issuer is None:
        return {"key": key}
    address = f"{settings.oidc_issuer.rstrip('/')}/.well-known/openid-configuration"
    return {"key": key, "oidc": {"type": "openIdConnect", "openIdConnectUrl": address}}


def _describe(operation: dict[str, Any]) -> str:
    needed = read_needs(operation)
    if needed.over is Over.CALLER:
        return f"{operation.get('description', '')}\n\nNeeds no right: any caller may ask."
    right = needed.right.value
    rights = "`read`" if right == "read" else f"`read` and `{right}`"
    content = operation["responses"].get("200", {}).get("content", {})
    streams = "anyOf" in content.get(NDJSON, {}).get("schema", {})
    also = " A stream needs `export` as well, over each model that it reads." if streams else ""
    sentence = f"Needs {rights} over {_OVER[needed.over]}.{also}"
    return f"{operation.get('description', '')}\n\n{sentence}"
