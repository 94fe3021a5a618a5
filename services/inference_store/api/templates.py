"""The path templates of the OpenAPI: finds the one of a path, and the methods it takes."""

import re
from collections.abc import Iterable

from fastapi.routing import APIRoute

OTHER = "other"


class Templates:
    """The paths of all routes that the OpenAPI shows."""

    def __init__(self, routes: Iterable[APIRoute]) -> None:
        self._methods: dict[str, frozenset[str]] = {}
        for route in routes:
            if route.include_in_schema:
                methods = self._methods.get(route.path_format, frozenset())
                self._methods[route.path_format] = methods.union(route.methods or ())
        self._patterns = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", template)), template)
            for template in self._methods
        ]

    def of(self, path: str) -> str:
        """Return the template of an escaped path; a literal one wins; OTHER: there is none."""
        if path in self._methods:
            return path
        for pattern, template in self._patterns:
            if pattern.fullmatch(path):
                return template
        return OTHER

    def methods(self, path: str) -> list[str]:
        """Return the methods that an escaped path takes, by any of its templates."""
        methods = [
            self._methods[name] for pattern, name in self._patterns if pattern.fullmatch(path)
        ]
        return sorted(frozenset().union(*methods))
