"""What an inference is called: the caller's own name for it where there is one."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from inference_store.inference.json_text import storable
from inference_store.proxy.exchange import Headers, header

from .uuid7 import uuid7

ID_HEADER = "inference-store-id"
"""Names the id in the answer, where it came from a header or was made here."""
BASE_ID, REQUEST_ID = "chariot-inference-base-id", "x-request-id"
_LONGEST = 256
# Room for `-<index>`: a longer name is not taken.
_LONGEST_BASE = _LONGEST - 8
_MOST_ALIASES = 8


Own: TypeAlias = tuple[str | None, str | None]
"""What an inference alone is called in the request and in the answer."""


@dataclass(frozen=True, slots=True)
class Ids:
    """An inference's id, and the other names that it is found by."""

    inference_id: str
    aliases: tuple[str, ...]


def id_for_answer(request_headers: Headers) -> tuple[str, str]:
    """The header that the answer should carry, known before anything is decoded.

    The id of a request's body comes first where it has one; this one is then an alias. Put it
    into `Exchange.response_headers`, too: from there it is read, and not made a second time.
    """
    named = (header(request_headers, name) for name in (BASE_ID, REQUEST_ID))
    found = next((each for each in named if each is not None and _usable(each)), None)
    return ID_HEADER, found or str(uuid7())


def ids_of(
    *,
    request_id: str | None,
    response_id: str | None,
    request_headers: Headers,
    response_headers: Headers,
    own: Sequence[Own],
    clean: Callable[[str | None], str | None] = lambda name: name,
) -> Sequence[Ids]:
    """The ids of an exchange's inferences, in order: the request's, else the base id's header,
    else the answer's, else the request id's header, else the one made here.

    Several are found by the name they share, and told apart by the names that each has for itself
    (`own`), else by `-<index>`. `clean`: what is left of one where values are redacted; None:
    nothing.
    """
    made = header(response_headers, ID_HEADER)
    given = (
        request_id,
        header(request_headers, BASE_ID),
        response_id,
        header(request_headers, REQUEST_ID),
        made,
    )
    names = _distinct(map(clean, given)) or (str(uuid7()),)
    if len(own) == 1:
        return (Ids(names[0], names[1:_MOST_ALIASES]),)
    each_own = [_distinct(map(clean, each)) for each in own]
    times = Counter(name for each in each_own for name in each)
    taken = {name for name, count in times.items() if count == 1}
    return [_one_of(index, each, names, taken) for index, each in enumerate(each_own)]


def _one_of(index: int, own: Sequence[str], shared: Sequence[str], taken: set[str]) -> Ids:
    """The ids of one of several inferences. `taken`: names that one of them alone has."""
    alone = [name for name in own if name in taken]
    others = [name for name in (*own, *shared) if name not in taken]
    if alone:
        return Ids(alone[0], (*alone[1:], *others)[:_MOST_ALIASES])
    made = f"{others[0]}-{index}" if others else str(uuid7())
    return Ids(str(uuid7()) if made in taken else made, tuple(others[:_MOST_ALIASES]))


def storable_name(text: str | None, otherwise: str) -> str:
    """A model's name as an event may carry it."""
    clean = (text or "").encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return clean[:_LONGEST] or otherwise


def _distinct(given: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in given if each is not None and _usable(each)))


def _usable(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_BASE and storable(name)
