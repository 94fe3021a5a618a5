"""Versions of the models in OMI containers: a Run does not name one, the Status before it does."""

from dataclasses import replace
from typing import Final

from inference_store.grpc_messages import parsed

from .methods import RUN, STATUS
from .onward import Onward

_LONGEST: Final = 256


class OmiVersions:
    """By upstream, as the last Status that passed through said it."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}

    def note(self, onward: Onward, path: str, answer: bytes) -> None:
        """An answer went back."""
        status = parsed("StatusResponse", answer) if path == STATUS else None
        if status is not None and (version := status.model_info.model_version):
            self._versions[onward.upstream] = version[:_LONGEST]

    def added(self, onward: Onward, path: str) -> Onward:
        """A Run with the version of its model, where that is known."""
        version = self._versions.get(onward.upstream)
        if path != RUN or onward.call is None or version is None:
            return onward
        return replace(onward, call=replace(onward.call, version=version))
