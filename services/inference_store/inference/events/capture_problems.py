"""The problems of a capture: the one list of its reasons, by the side of the exchange.

A producer names them in the event's `capture_problems`. Each is the flag `capture_<reason>` of the
inference, the property `request_problem` or `response_problem` in filters, and a label of the
proxy's counter.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

CaptureSide: TypeAlias = Literal["request", "response"]
CaptureKind: TypeAlias = Literal[
    "over_cap", "broken_off", "not_json", "unreadable", "no_input", "not_divided", "misshapen"
]
SIDES: Final[tuple[CaptureSide, ...]] = ("request", "response")
# The gravest first: only the first one of each side is reported.
_KINDS: Final[Mapping[CaptureSide, Mapping[CaptureKind, str]]] = MappingProxyType(
    {
        "request": {
            "over_cap": "The request is over a cap, or there was no memory for it: it is lost.",
            "broken_off": "The request broke off: what came of it is kept, and not read.",
            "not_json": "The request is no JSON: its body is kept as the input.",
            "unreadable": "The request, or a part of it, cannot be read.",
            "no_input": "The request holds no input.",
            "not_divided": "The request holds too many inputs: it is one inference.",
            "misshapen": "An input has another number of values than its shape says.",
        },
        "response": {
            "over_cap": "The response is over a cap, or there was no memory for it: it is lost.",
            "broken_off": "The response broke off: what came of it is kept.",
            "not_json": "The response, or a part of it, is no JSON.",
            "unreadable": "The response, or a part of it, cannot be read.",
            "not_divided": (
                "The response does not match the inputs: they are one inference. Or it may be the"
                " answer to another request of a stream."
            ),
            "misshapen": "An output has another number of values than its shape says.",
        },
    }
)
CAPTURE_PROBLEMS: Final[Mapping[str, str]] = MappingProxyType(
    {f"{side}_{kind}": text for side, kinds in _KINDS.items() for kind, text in kinds.items()}
)
_FLAG: Final = "capture_"


def gravest(problems: Collection[tuple[CaptureSide, CaptureKind]]) -> list[str]:
    """Return the reasons to report: at most one of each side."""
    kinds_by_side = (
        [kind for kind in kinds if (side, kind) in problems] for side, kinds in _KINDS.items()
    )
    return [
        f"{side}_{kinds[0]}" for side, kinds in zip(_KINDS, kinds_by_side, strict=True) if kinds
    ]


def flag_of(reason: str) -> str:
    """Return the flag of an inference whose capture has this problem."""
    return _FLAG + reason


def flags_of(side: CaptureSide) -> Mapping[str, CaptureKind]:
    """Return the kind of each flag of a side."""
    return {flag_of(f"{side}_{kind}"): kind for kind in _KINDS[side]}
