"""Reads requests: bounded, with exact numbers, and nothing unknown accepted."""

import json
from collections.abc import Callable, Coroutine, Sequence
from decimal import Decimal
from typing import Any, Final

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from inference_store.inference.errors import Fault, Invalid, NotAcceptable, TooLarge

from .negotiation import ANY, JSON, choose_type
from .reader_thread import read_in_thread

MOST_ITEMS: Final = 20_000
"""Commas and opening brackets of a body: no more are parsed, whatever the body would be refused for
then."""
_SMALL_BODY = 64 * 1024
_SMALL_DIGITS = 18


class ExactRequest(Request):
    """A request whose body was read within the limit, with exact numbers."""

    async def load(self, limit: int) -> None:
        """Read the body.

        Raises TooLarge as soon as it exceeds `limit` bytes, or if it has more items than any body
        may have.
        """
        pieces, size = [], 0
        async for piece in self.stream():
            size += len(piece)
            if size > limit:
                raise TooLarge(
                    f"The body is over {limit} bytes (INFERENCE_STORE_API_MAX_BODY_BYTES)."
                )
            pieces.append(piece)
        self._body = b"".join(pieces)
        if sum(map(self._body.count, (b",", b"[", b"{"))) > MOST_ITEMS:
            raise TooLarge(f"The body has over {MOST_ITEMS:,} items: commas, `[` and `{{`.")

    async def json(self) -> Any:
        """Return the body; a number with a point or many digits is a Decimal."""
        body = await self.body()
        return (
            exact_json(body) if len(body) <= _SMALL_BODY else await read_in_thread(exact_json, body)
        )


def exact_json(body: bytes) -> Any:
    """Parse a JSON text. Raises json.JSONDecodeError, whatever is wrong with it."""
    try:
        return json.loads(
            body.decode("utf-8"),
            parse_float=Decimal,
            parse_int=_parse_integer,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as exc:
        raise json.JSONDecodeError("it is not UTF-8", "", exc.start) from None
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deep", "", 0) from None


def _parse_integer(digits: str) -> int | Decimal:
    # Python's int() refuses very many digits, and is slow before that.
    return int(digits) if len(digits) <= _SMALL_DIGITS else Decimal(digits)


def _refuse_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not JSON", "", 0)


class ExactRoute(APIRoute):
    """A route that reads an ExactRequest, refuses unknown query parameters, and answers with a type
    that the request accepts."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        known_parameters = sorted(_list_query_names(self.dependant))
        offered = list_offered_types(self)

        async def handle(request: Request) -> Response:
            request.state.media_type = require_type(request, offered)
            exact = ExactRequest(request.scope, request.receive)
            await exact.load(request.app.state.settings.api_max_body_bytes)
            self.charge(exact, len(await exact.body()))
            _refuse_unknown(exact, known_parameters)
            return await handler(exact)

        return handle

    def charge(self, request: Request, size: int) -> None:
        """Charge a body of `size` bytes to its sender. Raises TooManyRequests."""


def list_offered_types(route: APIRoute) -> tuple[str, ...]:
    """Return the media types that a route answers with; the first one if any will do."""
    media_types = tuple(route.responses.get(200, {}).get("content", ()))
    kind = route.response_class
    has_json = not (isinstance(kind, type) and issubclass(kind, StreamingResponse))
    return (JSON, *media_types) if has_json else media_types


def require_type(request: Request, offered: Sequence[str]) -> str:
    """Return the type to answer with. Raises NotAcceptable.

    A route that answers with whatever was stored does not know the type yet: */*.
    """
    if ANY in offered:
        return ANY
    accept = ", ".join(request.headers.getlist("Accept"))
    chosen = choose_type(accept, offered)
    if chosen is None:
        message = f"the route answers with no type that it names: send one of {', '.join(offered)}"
        fault = Fault("header.accept", message, offered)
        raise NotAcceptable(f"Accept: {message}.", faults=[fault])
    return chosen


def _list_query_names(dependant: Dependant) -> set[str]:
    """Return the query parameters of a route and of its dependencies."""
    names: set[str] = set()
    for field in dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names |= {info.alias or name for name, info in kind.model_fields.items()}
        else:
            names.add(field.alias)
    return names.union(*map(_list_query_names, dependant.dependencies))


def _refuse_unknown(request: Request, known_parameters: list[str]) -> None:
    unknown = sorted(set(request.query_params) - set(known_parameters))
    if unknown:
        faults = [
            Fault(f"query.{name}", "unknown query parameter", known_parameters) for name in unknown
        ]
        raise Invalid(f"Unknown query parameter: {', '.join(unknown)}.", faults=faults)
