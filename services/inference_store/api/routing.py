"""Routes under /v1: what one needs, reads, refuses and answers with, and the OpenAPI of them."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from inspect import iscoroutinefunction, signature
from typing import Any, Final, TypeVar, get_args, get_origin

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_body_to_args, request_params_to_args
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from inference_store.access.rights import Right
from inference_store.api.answer import Problem, document_refusals
from inference_store.inference.errors import Fault, Invalid, NotAcceptable
from inference_store.platform.settings import AccessSettings

from .access import EXTENSION, Needs, Over, declare, read_needs
from .fields import PageAnswer, page_of
from .http import ANY, JSON, NDJSON, ExactRequest, choose_type

PREFIX: Final = "/v1"
_IN_BULK: Final = set[Callable[..., Any]]()
"""Functions that read the body of the request by themselves."""
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Router(APIRouter):
    """Routes of one subject under /v1.

    FastAPI builds a route again whenever a router with a prefix or dependencies of its own includes
    it, which would take a tenth of a second for each app: so a router has all of it beforehand.
    """

    def __init__(self, tag: str) -> None:
        """`tag`: the OpenAPI shows the routes under it."""
        super().__init__(
            prefix=PREFIX,
            route_class=GuardedRoute,
            tags=[tag],
            generate_unique_id_function=lambda route: route.name,
        )

    def add(
        self,
        route: str,
        needed: Needs | Right,
        summary: str,
        *refusals: int,
        status: int = 200,
        also: dict[int | str, dict[str, Any]] | None = None,
        answer: type[BaseModel] | type[Response] | None = None,
        order: str = "the newest first",
        in_bulk: bool = False,
        **options: Any,
    ) -> Callable[[Endpoint], Endpoint]:
        """Add a function as a route, such as `GET /models`; it answers with what it returns, or
        with `answer`.

        `needed`: a right alone is one over the model of the path; `refusals`: the statuses it
        refuses with, beside those of every route, of a path that names something, of `if_match` and
        of a `body`; `also`: answers that the OpenAPI shows beside its own; `order`: of a page;
        `in_bulk`: the function reads the body by itself, which may be large.
        """
        method, _, path = route.partition(" ")
        extra = options.pop("openapi_extra", {})
        needed = needed if isinstance(needed, Needs) else Needs(needed)

        def add(endpoint: Endpoint) -> Endpoint:
            known = set(signature(endpoint).parameters)
            _IN_BULK.update({endpoint} if in_bulk else ())
            kind = answer or _find_answer(endpoint, order)
            name = "response_class" if issubclass(kind, Response) else "response_model"
            options[name] = kind
            implied = {404} if "{" in path else set[int]()
            implied |= {412} if "if_match" in known else set()
            implied |= {400, 413} if "body" in known else set()
            self.add_api_route(
                path,
                endpoint,
                methods=[method],
                status_code=status,
                summary=summary,
                responses=document_refusals(*refusals, *implied, also=also),
                openapi_extra=extra | declare(needed),
                **options,
            )
            return endpoint

        return add


def _find_answer(endpoint: Callable[..., Any], order: str) -> type[BaseModel] | type[Response]:
    """Return what the annotation says that a function returns."""
    returned = signature(endpoint).return_annotation
    kind, parts = get_origin(returned) or returned, get_args(returned)
    if kind is PageAnswer:
        return page_of(parts[0], order)
    found: type[BaseModel] | type[Response] = parts[0] if parts else kind
    return found


class _Parameters:
    """What a function takes from a request, and from the functions that it depends on.

    FastAPI documents and validates them. Left to itself, it would also inspect each of them again
    on every request.
    """

    def __init__(self, of: Dependant) -> None:
        self._of = of
        self._call: Any = of.call
        self._is_opened = not iscoroutinefunction(of.call)  # it returns what is opened
        self._needed = [(below.name, _Parameters(below)) for below in of.dependencies]
        self._of_no_query: tuple[dict[str, Any], list[Any]] | None = None

    async def read(
        self, request: Request, body: Any, stack: AsyncExitStack, faults: list[Any]
    ) -> dict[str, Any]:
        """Return them by name, and add to `faults`; what it depends on stays open in `stack`."""
        of, values, before = self._of, dict[str, Any](), len(faults)
        for name, needed in self._needed:
            taken = await needed.read(request, body, stack, faults)
            if len(faults) == before:
                made = needed._call(**taken)
                made = await (stack.enter_async_context(made) if needed._is_opened else made)
                values |= {} if name is None else {name: made}
        read = [self._read_query(request)] if of.query_params else []
        if of.header_params:
            read.append(request_params_to_args(of.header_params, request.headers))
        if of.body_params:
            read.append(await request_body_to_args(of.body_params, body, embed_body_fields=False))
        for field in of.path_params:
            given, place = request.path_params[field.alias], ("path", field.alias)
            values[field.name], wrong = field.validate(given, loc=place)
            faults += wrong
        for found, wrong in read:
            values |= found
            faults += wrong
        return values | ({of.request_param_name: request} if of.request_param_name else {})

    def _read_query(self, request: Request) -> tuple[dict[str, Any], list[Any]]:
        fields = self._of.query_params
        if request.scope["query_string"]:
            return request_params_to_args(fields, request.query_params)
        self._of_no_query = self._of_no_query or request_params_to_args(fields, QueryParams())
        return self._of_no_query


class GuardedRoute(APIRoute):
    """Authenticates a request before it reads it, exactly, and refuses unknown query parameters and
    types that it cannot answer with."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self._slashes = self.path.count("/")
        self._needed = read_needs(self.openapi_extra)
        self._known_parameters = sorted(_list_query_names(self.dependant))
        media_types = tuple(self.responses.get(200, {}).get("content", ()))
        kind = self.response_class
        has_json = not (isinstance(kind, type) and issubclass(kind, StreamingResponse))
        self._offered = (JSON, *media_types) if has_json else media_types
        self._parameters = _Parameters(self.dependant)
        # what may be larger than the memory: the function reads it by itself
        self._is_in_bulk = endpoint in _IN_BULK
        self.app = self._serve

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as FastAPI does; most other routes have fewer parts, or more."""
        if scope["path"].count("/") != self._slashes:
            return Match.NONE, {}
        return super().matches(scope)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, state = ExactRequest(scope, receive), scope["app"].state
        in_bulk = self._is_in_bulk
        access = await state.authenticator.authenticate(request, self._needed, in_bulk=in_bulk)
        request.state.access = access
        request.state.media_type = require_type(request, self._offered)
        size = 0
        if not in_bulk:
            size = await request.load(state.settings.api_max_body_bytes)
        state.authenticator.charge_undeclared(request, access.caller, size)
        if scope["query_string"]:
            _refuse_unknown(request, self._known_parameters)
        body = await request.read_content() if self.body_field else None
        await state.ledger_watch.require()
        async with AsyncExitStack() as stack:
            values = await self._parameters.read(request, body, stack, faults := list[Any]())
            if faults:
                raise RequestValidationError(faults)
            answer: Response = await self.endpoint(**values)
        await access.finish()  # nothing of the request is open any more
        await answer(scope, receive, send)


def require_type(request: Request, offered: tuple[str, ...]) -> str:
    """Return the type to answer with. Raises NotAcceptable.

    A route that answers with whatever was stored does not know the type yet: */*.
    """
    if ANY in offered:
        return ANY
    accept = ", ".join(request.headers.getlist("Accept"))
    chosen = choose_type(accept, offered)
    if chosen is None:
        message = f"it names no type that the route answers with: send one of {', '.join(offered)}"
        raise NotAcceptable.of("header.accept", message, offered)
    return chosen


def _list_query_names(dependant: Dependant) -> set[str]:
    names: set[str] = set()
    for field in dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names |= {info.alias or name for name, info in kind.model_fields.items()}
        else:
            names.add(field.alias)
    return names.union(*map(_list_query_names, dependant.dependencies))


def _refuse_unknown(request: Request, known_parameters: list[str]) -> None:
    if unknown := sorted(set(request.query_params) - set(known_parameters)):
        faults = [
            Fault(f"query.{name}", "unknown query parameter", known_parameters) for name in unknown
        ]
        raise Invalid(f"Unknown query parameter: {', '.join(unknown)}.", faults=faults)


BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
"""Bytes, as OpenAPI has them."""
_REF = "#/components/schemas/{model}"
# Here it tells what is shown from what is stored; clients know what is shown alone.
_PREFIX = re.compile(r"\b(?:Shown|Listed)(?=[A-Z])")
_OVER = {
    Over.MODEL: "the model",
    Over.PROJECT: "the whole project, including future models",
    Over.SOME: "at least one model; the answer is narrowed to the models with that right",
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
            schemas: dict[str, Any] = schema["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            parts: list[type[BaseModel]] = [Problem, *kinds]
            for kind in parts:
                ours = models_json_schema([(kind, "serialization")], ref_template=_REF)[1]
                schemas.update(ours["$defs"])
            _add_security(schema, settings)
            names = {_PREFIX.sub("", name) for name in schemas}
            assert len(names) == len(schemas), "two models of the API have one name"
            app.openapi_schema = json.loads(_PREFIX.sub("", json.dumps(schema)))
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def make_ref(kind: type[BaseModel]) -> str:
    """Return the reference to a schema."""
    return _REF.format(model=kind.__name__)


def _add_security(schema: dict[str, Any], settings: AccessSettings) -> None:
    schemes = {} if settings.auth == "off" else _list_schemes(settings)
    if schemes:
        schema["components"]["securitySchemes"] = schemes
    for item in schema["paths"].values():
        for operation in item.values():
            if EXTENSION in operation:
                operation["description"] = _describe_operation(operation)
                if schemes:
                    operation["security"] = [{name: []} for name in schemes]


def _list_schemes(settings: AccessSettings) -> dict[str, Any]:
    key = {"type": "http", "scheme": "bearer", "description": "An API key, isk_…"}
    if settings.oidc_issuer is None:
        return {"key": key}
    address = f"{settings.oidc_issuer.rstrip('/')}/.well-known/openid-configuration"
    return {"key": key, "oidc": {"type": "openIdConnect", "openIdConnectUrl": address}}


def _describe_operation(operation: dict[str, Any]) -> str:
    needed = read_needs(operation)
    if needed.over is Over.CALLER:
        return f"{operation.get('description', '')}\n\nNeeds no right."
    right = needed.right.value
    rights = "`read`" if right == "read" else f"`read` and `{right}`"
    content = operation["responses"].get("200", {}).get("content", {})
    streams = "anyOf" in content.get(NDJSON, {}).get("schema", {})
    also = " A stream needs `export` as well, over each model that it reads." if streams else ""
    sentence = f"Needs {rights} over {_OVER[needed.over]}.{also}"
    return f"{operation.get('description', '')}\n\n{sentence}"
