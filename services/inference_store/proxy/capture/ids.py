"""The id of an inference: the caller's own, if it sent one."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from inference_store.inference.ids import MOST_CHARACTERS, is_id
from inference_store.proxy.exchange import Headers, header


def uuid7() -> UUID:
    """Return a new UUID: 48 bits of Unix milliseconds, 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    return UUID(
        int=(milliseconds & (1 << 48) - 1) << 80
        | 7 << 76
        | (random >> 68) << 64
        | 2 << 62
        | random & (1 << 62) - 1
    )


ID_HEADER = "inference-store-id"
"""The header that names the id in the answer, if it came from a header or was made here."""
BASE_ID, REQUEST_ID = "chariot-inference-base-id", "x-request-id"
# Leaves room for `-<index>`: a longer name is not used.
_LONGEST_BASE = MOST_CHARACTERS - 8
_MOST_ALIASES = 8


OwnNames: TypeAlias = tuple[str | None, str | None]
"""The ids that one inference has in the request and in the answer."""


@dataclass(frozen=True, slots=True)
class Ids:
    """An inference's id, and its aliases."""

    inference_id: str
    aliases: tuple[str, ...]


def id_for_answer(request_headers: Headers) -> tuple[str, str]:
    """Return the id header that the answer should carry, known before anything is decoded.

    If the request's body has an id, that one is used, and this one is an alias. Put it into
    `Exchange.response_headers`, too: from there it is read, and not made a second time.
    """
    names = (header(request_headers, name) for name in (BASE_ID, REQUEST_ID))
    usable = next(
        (
            inference_id
            for inference_id in names
            if inference_id is not None and _is_usable(inference_id)
        ),
        None,
    )
    return ID_HEADER, usable or str(uuid7())


def ids_of(
    *,
    request_id: str | None,
    response_id: str | None,
    request_headers: Headers,
    response_headers: Headers,
    own: Sequence[OwnNames],
    position: int = 0,
    clean: Callable[[str | None], str | None] = lambda name: name,
) -> Sequence[Ids]:
    """Return the ids of an exchange's inferences, in order: the request's, else the base id's
    header, else the answer's, else the request id's header, else the one made here.

    Several inferences share the exchange's ids as aliases, and are distinguished by the ids that
    only one of them has (`own`), else by `-<index>`. So do the exchanges of a gRPC stream, by their
    `position`, but the first one is named as if it were alone. `clean` removes redacted values from
    an id; it returns None if nothing is left.
    """
    generated = header(response_headers, ID_HEADER)
    if position:
        own, request_id, response_id = [(request_id, response_id)], None, None
    candidates = (
        request_id,
        header(request_headers, BASE_ID),
        response_id,
        header(request_headers, REQUEST_ID),
        generated,
    )
    names = _distinct(map(clean, candidates)) or (str(uuid7()),)
    if position:
        names_of_one = _distinct(map(clean, own[0]))
        return (_choose_ids(position, names_of_one, names, set(names_of_one)),)
    if len(own) == 1:
        return (Ids(names[0], names[1:_MOST_ALIASES]),)
    cleaned = [_distinct(map(clean, names_of_one)) for names_of_one in own]
    times = Counter(name for own_names in cleaned for name in own_names)
    distinct = {name for name, count in times.items() if count == 1}
    return [
        _choose_ids(index, own_names, names, distinct) for index, own_names in enumerate(cleaned)
    ]


def _choose_ids(index: int, own: Sequence[str], shared: Sequence[str], distinct: set[str]) -> Ids:
    """Return the ids of one of several inferences. `distinct`: names that only one of them has."""
    alone = [name for name in own if name in distinct]
    others = [name for name in (*own, *shared) if name not in distinct]
    if alone:
        return Ids(alone[0], (*alone[1:], *others)[:_MOST_ALIASES])
    indexed = f"{others[0]}-{index}" if others else str(uuid7())
    return Ids(str(uuid7()) if indexed in distinct else indexed, tuple(others[:_MOST_ALIASES]))


def storable_name(text: str | None, otherwise: str) -> str:
    """Return a model's name as an event may carry it."""
    clean = (text or "").encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    name = clean[:MOST_CHARACTERS]
    return name if is_id(name) else otherwise


def _distinct(names: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name is not None and _is_usable(name)))


def _is_usable(name: str) -> bool:
    return is_id(name) and len(name) <= _LONGEST_BASE
