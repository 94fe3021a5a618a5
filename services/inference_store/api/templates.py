"""The paths of the OpenAPI: which one a request's path is of, and what methods it takes."""

import re
from collections.abc import Mapping
from typing import Any

OTHER = "other"


class Templates:
    """The paths of one OpenAPI document."""

    def __init__(self, paths: Mapping[str, Mapping[str, Any]]) -> None:
        self._methods = {
            template: frozenset(method.upper() for method in item)
            for template, item in paths.items()
        }
        self._patterns = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", template)), template) for template in paths
        ]

    def of(self, path: str) -> str:
        """The template of an escaped path; a literal one wins; OTHER: there is none."""
        if path in self._methods:
            return path
        for pattern, template in self._patterns:
            if pattern.fullmatch(path):
                return template
        return OTHER

    def methods(self, path: str) -> list[str]:
        """The methods that an escaped path takes, by any of its templates."""
        found = [self._methods[name] for pattern, name in self._patterns if pattern.fullmatch(path)]
        return sorted(frozenset().union(*found))
