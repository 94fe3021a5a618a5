"""The parameters of routes, read as FastAPI documents them.

FastAPI itself finds out anew for each request what every parameter is, which would take a third of
the time of a short one. So it only describes the routes here, and validates.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from inspect import iscoroutinefunction
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_body_to_args, request_params_to_args
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request


class Parameters:
    """What a function takes from a request, and from the functions that it depends on."""

    def __init__(self, of: Dependant) -> None:
        assert of.call is not None
        assert not of.cookie_params, "no route reads cookies this way"
        self._call: Any = of.call
        self._is_opened = not iscoroutinefunction(of.call)  # it returns what is opened
        self._of = of
        self._needed = [(below.name, Parameters(below)) for below in of.dependencies]
        self._path = [(field, field.alias, ("path", field.alias)) for field in of.path_params]
        self._default: tuple[dict[str, Any], list[Any]] | None = None

    async def call(self, request: Request, body: Any, stack: AsyncExitStack) -> Any:
        """Call the function; what it depends on stays open in `stack`. Raises
        RequestValidationError."""
        faults: list[Any] = []
        values = await self._read(request, body, stack, faults)
        if faults:
            raise RequestValidationError(faults)
        return await self._call(**values)

    async def _read(
        self, request: Request, body: Any, stack: AsyncExitStack, faults: list[Any]
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, needed in self._needed:
            before = len(faults)
            taken = await needed._read(request, body, stack, faults)
            if len(faults) == before:
                made = needed._call(**taken)
                made = await (stack.enter_async_context(made) if needed._is_opened else made)
                values |= {} if name is None else {name: made}
        for field, alias, place in self._path:
            values[field.name], wrong = field.validate(request.path_params.get(alias), loc=place)
            faults += wrong
        of = self._of
        if of.query_params:
            self._take(values, faults, self._read_query(request))
        if of.header_params:
            headers = request_params_to_args(of.header_params, request.headers)
            self._take(values, faults, headers)
        if of.body_params:
            content = await request_body_to_args(of.body_params, body, embed_body_fields=False)
            self._take(values, faults, content)
        if of.request_param_name:
            values[of.request_param_name] = request
        return values

    def _read_query(self, request: Request) -> tuple[dict[str, Any], list[Any]]:
        if request.scope["query_string"]:
            return request_params_to_args(self._of.query_params, request.query_params)
        if self._default is None:
            self._default = request_params_to_args(self._of.query_params, QueryParams())
        return self._default

    @staticmethod
    def _take(
        values: dict[str, Any],
        faults: list[Any],
        read: tuple[Mapping[str, Any], list[Any]],
    ) -> None:
        values |= read[0]
        faults += read[1]
