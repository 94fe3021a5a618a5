"""Whose policy a body is of: what the path of a request says, said by its body too."""

import re
from typing import Any
from urllib.parse import unquote

_POLICY = re.compile(r"(?:/(model|project)s/([^/]+))?/retention-policy(?:/preview)?$")


def name_owner(path: str, body: Any) -> Any:
    """Return a body with the level and id of the policy that its path names; any other body as it
    is."""
    match = _POLICY.search(path)
    if match is None or not isinstance(body, dict):
        return body
    level, id = match.groups()
    return {"level": level or "default", "id": None if id is None else unquote(id), **body}
