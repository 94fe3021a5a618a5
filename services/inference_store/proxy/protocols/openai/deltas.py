"""Joins the deltas of a streamed answer to the object that an unstreamed answer has."""

from typing import Any, Final

from inference_store.inference.json_text import Json

_ONCE: Final = ("id", "role", "type")
"""Texts that come whole, and may come again."""
_MOST_LEVELS: Final = 8
"""The most nested objects of a delta that are joined; deeper ones stay in the chunks."""


class Pieces(list[str]):
    """A text that comes in pieces: joined once, as there can be very many."""


class _Calls(list[dict[str, Any]]):
    """The calls of tools, in the order in which they began."""

    def __init__(self) -> None:
        super().__init__()
        self._by_key: dict[Any, dict[str, Any]] = {}

    def find(self, part: dict[str, Json]) -> dict[str, Any]:
        """Return the call that a piece belongs to: the one of its `index`, else of its `id`. A
        piece without both goes on with the last call, unless both name a function."""
        keys = [key for key in (part.get("index"), part.get("id")) if type(key) in (int, str)]
        keys = [key for key in keys if key != ""]
        call = self._by_key.get(keys[0]) if keys else self[-1] if self else None
        is_another = call is not None and (
            "id" in call and part.get("id", call["id"]) not in (call["id"], "", None)
            if keys
            else _name_of(call) and _name_of(part)
        )
        if call is None or is_another:
            self.append(call := {})
        self._by_key |= dict.fromkeys(keys, call)
        return call


def join_delta(delta: dict[str, Json], message: dict[str, Any], levels: int = _MOST_LEVELS) -> None:
    """Join a delta as OpenAI's own clients do: texts are put together, lists are extended."""
    for name, part in delta.items():
        known = message.get(name)
        if isinstance(part, dict) and levels:
            message[name] = known if isinstance(known, dict) else {}
            join_delta(part, message[name], levels - 1)
        elif name == "tool_calls" and isinstance(part, list):
            message[name] = known if isinstance(known, _Calls) else _Calls()
            for piece in part if levels else ():
                if isinstance(piece, dict):
                    unnumbered = {key: piece[key] for key in piece if key != "index"}
                    join_delta(unnumbered, message[name].find(piece), levels - 1)
        elif isinstance(part, list):
            message[name] = known if type(known) is list else []
            message[name].extend(part)
        elif type(part) is str and name not in _ONCE:
            message[name] = known if isinstance(known, Pieces) else Pieces()
            message[name].append(part)
        elif part not in (None, "") and not isinstance(part, dict):
            message[name] = part


def _name_of(call: dict[str, Any]) -> Any:
    function = call.get("function")
    return function.get("name") if isinstance(function, dict) else None


def join_pieces(value: Any, levels: int = 2 * _MOST_LEVELS) -> Any:
    """Return a value with its pieces joined."""
    if isinstance(value, Pieces):
        return "".join(value)
    if isinstance(value, dict) and levels:
        return {name: join_pieces(member, levels - 1) for name, member in value.items()}
    if isinstance(value, _Calls):
        return [join_pieces(call, levels - 1) for call in value]
    return value
