"""What a container says of its model, in its Status."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

PLATFORM: Final = "omi"
_DURATION: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h)?[a-z]*\s*", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
_BINARY: Final = ("image/", "audio/", "video/", "application/octet-stream", "application/pdf")
_MOST_TOGETHER: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """An input or an output of a model."""

    name: str
    media_types: Sequence[str] = ()

    @property
    def is_binary(self) -> bool:
        """It is no text, whatever it looks like."""
        return any(each.lower().startswith(_BINARY) for each in self.media_types)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A model in a container."""

    name: str
    version: str
    inputs: Sequence[File]
    outputs: Sequence[File]
    batch_size: int = 1
    """Input items that one Run takes."""
    run_seconds: float | None = None
    """How long one Run may take; None: it does not say."""


def about_of(status: Any) -> About:
    """From a StatusResponse."""
    info, size = status.model_info, status.features.batch_size
    return About(
        name=info.model_name,
        version=info.model_version,
        inputs=[
            File(name=each.filename, media_types=list(each.accepted_media_types))
            for each in status.inputs
        ],
        outputs=[
            File(name=each.filename, media_types=[each.media_type]) for each in status.outputs
        ],
        batch_size=max(1, min(size, _MOST_TOGETHER)),
        run_seconds=seconds_of(status.timeout.run),
    )


def seconds_of(duration: str) -> float | None:
    """`60s`, `1.5m`, `500ms`, `2 h`, or a number of seconds; None: it says nothing of use."""
    found = _DURATION.fullmatch(duration.lower())
    if found is None:
        return None
    return float(found[1]) * _SECONDS[found[2]] or None
