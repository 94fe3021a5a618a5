"""Versions of the models in OMI containers: a Run does not name one, but the Status before it
does."""

from dataclasses import replace
from typing import Final

from inference_store.grpc_messages import parsed

from .call_target import CallTarget
from .methods import RUN, STATUS

_LONGEST: Final = 256


class OmiVersions:
    """The versions by upstream, from the last Status that passed through."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}

    def note(self, target: CallTarget, path: str, answer: bytes) -> None:
        """Note the version in a Status answer."""
        status = parsed("StatusResponse", answer) if path == STATUS else None
        if status is not None and (version := status.model_info.model_version):
            self._versions[target.upstream] = version[:_LONGEST]

    def add_version(self, target: CallTarget, path: str) -> CallTarget:
        """Return the target of a Run with the version of its model, if that is known."""
        version = self._versions.get(target.upstream)
        if path != RUN or target.call is None or version is None:
            return target
        return replace(target, call=replace(target.call, version=version))
