"""The Status of a container: its description of its model."""

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
        """True if it is not text, whatever its bytes look like."""
        return any(media_type.lower().startswith(_BINARY) for media_type in self.media_types)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """A model in a container."""

    name: str
    version: str
    inputs: Sequence[File]
    outputs: Sequence[File]
    batch_size: int = 1
    """The most input items that one Run takes."""
    run_seconds: float | None = None
    """How long one Run may take; None if the container does not state it."""


def read_status(status: Any) -> ContainerStatus:
    """Return the status in a StatusResponse."""
    info, size = status.model_info, status.features.batch_size
    return ContainerStatus(
        name=info.model_name,
        version=info.model_version,
        inputs=[
            File(name=file.filename, media_types=list(file.accepted_media_types))
            for file in status.inputs
        ],
        outputs=[
            File(name=file.filename, media_types=[file.media_type]) for file in status.outputs
        ],
        batch_size=max(1, min(size, _MOST_TOGETHER)),
        run_seconds=parse_seconds(status.timeout.run),
    )


def parse_seconds(duration: str) -> float | None:
    """Return the seconds of `60s`, `1.5m`, `500ms`, `2 h`, or a number of seconds; None for any
    other text."""
    match = _DURATION.fullmatch(duration.lower())
    if match is None:
        return None
    return float(match[1]) * _SECONDS[match[2]] or None
