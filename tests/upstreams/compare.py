"""The same request to two addresses, and all that differs in the answers: what a caller could see.

Bodies byte for byte, as they are on the wire but for chunks; statuses; headers by value and in
order, but for those that belong to one connection and those that are named.
"""

from collections.abc import Collection, Mapping, Sequence

from .asking import Answered
from .clients import Called

HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)
BY_TIME = frozenset({"date"})
"""Headers whose presence is compared and not their value."""


def differences(direct: Answered, proxied: Answered, *, besides: Collection[str] = ()) -> list[str]:
    """What differs between two answers, a sentence each; [] where nothing does.

    `besides`: headers, in lower case, that only the second one has.
    """
    found = [
        _differs("status", direct.status, proxied.status),
        _differs("cut off", direct.cut, proxied.cut),
        *_of_headers(_seen(direct.headers), _seen(proxied.headers, besides)),
        _of_bytes("body", direct.body, proxied.body),
    ]
    return [sentence for sentence in found if sentence]


def differences_of_calls(
    direct: Called, proxied: Called, *, besides: Collection[str] = ()
) -> list[str]:
    """The same of two gRPC calls: messages, status, details, and metadata before and after."""
    pairs = zip(direct.responses, proxied.responses, strict=False)
    found = [
        _differs("code", direct.code, proxied.code),
        _differs("details", direct.details, proxied.details),
        *_of_headers(_seen(direct.initial), _seen(proxied.initial, besides)),
        *_of_headers(_seen(direct.trailing), _seen(proxied.trailing, besides)),
        _differs("number of messages", len(direct.responses), len(proxied.responses)),
        *(_of_bytes(f"message {at}", one, other) for at, (one, other) in enumerate(pairs)),
    ]
    return [sentence for sentence in found if sentence]


def _seen(
    headers: Sequence[tuple[str, str]], besides: Collection[str] = ()
) -> dict[str, list[str]]:
    """The values of each header a caller may rely on, in their order."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        lower = name.lower()
        if lower not in HOP_BY_HOP and lower not in besides:
            found.setdefault(lower, []).append("" if lower in BY_TIME else value)
    return found


def _of_headers(direct: Mapping[str, list[str]], proxied: Mapping[str, list[str]]) -> list[str]:
    names = sorted({*direct, *proxied})
    return [_differs(f"header {name}", direct.get(name), proxied.get(name)) for name in names]


def _differs(what: str, direct: object, proxied: object) -> str:
    return "" if direct == proxied else f"{what}: {direct!r} became {proxied!r}"


def _of_bytes(what: str, direct: bytes, proxied: bytes) -> str:
    if direct == proxied:
        return ""
    pairs = enumerate(zip(direct, proxied, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(direct), len(proxied)))
    one, other = direct[at : at + 40], proxied[at : at + 40]
    return (
        f"{what}: {len(direct)} and {len(proxied)} bytes, from byte {at} {one!r} became {other!r}"
    )
