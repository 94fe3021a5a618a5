"""Packs exchanges into segments, one open segment a model, and closes each in time."""

import time
from collections.abc import Callable
from typing import Final

from inference_store.platform.metrics import INCOMPLETE_CAPTURES
from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.capture.counts import Budget
from inference_store.proxy.capture.prepare import ChosenExchange, Preparation
from inference_store.proxy.capture.segments import Segment
from inference_store.proxy.capture.spool import Folder, Spools

OVERHEAD: Final = 512
"""Bytes counted for an event in addition to its content, and for an exchange."""
# With more models whose segments are open at once, or with more than this share of the budget in
# open segments, the oldest is closed.
_MOST_OPEN: Final = 256
# How long exchanges stay in memory after the spool had no room for one.
_REFUSED_SECONDS: Final = 1.0
_OPEN_SHARE: Final = 1 / 4


class Packing:
    """The open segments. For the decoding thread."""

    def __init__(
        self,
        settings: CaptureSettings,
        preparation: Preparation,
        budget: Budget,
        spools: Spools,
        send: Callable[[Segment | None], None],
    ) -> None:
        """`send` takes over a closed segment, and is told None of one that waits in the spool;
        never blocks."""
        self._preparation, self._budget, self._spools = preparation, budget, spools
        self._send = send
        self._prefix = settings.proxy_key_prefix
        self.is_packed = settings.proxy_packing == "on"
        """False: each exchange is a segment of its own, and is put as single objects."""
        self._bytes, self._seconds = settings.proxy_segment_bytes, settings.proxy_segment_seconds
        self._most = settings.proxy_segment_captures
        # in the order in which they were opened
        self._open: dict[str, Segment] = {}
        self._open_bytes = 0
        self._spool_from = 0.0

    def add(self, chosen: ChosenExchange, producer: str, sequence: int, reserved: int) -> None:
        """Add an exchange, and free of its `reserved` bytes what it does not need any more."""
        half_full = self._budget.held > self._budget.limit // 2
        folder = self._spools.find_folder(half_full=half_full)
        if folder is not None and time.monotonic() >= self._spool_from:
            if self._append(folder, chosen, producer, sequence, reserved):
                return
            # not at once again: each try ends an open segment
            self._spool_from = time.monotonic() + _REFUSED_SECONDS
        self._append(None, chosen, producer, sequence, reserved)

    def _append(
        self,
        folder: Folder | None,
        chosen: ChosenExchange,
        producer: str,
        sequence: int,
        reserved: int,
    ) -> bool:
        """Add an exchange to a segment in a folder of the spool, or in memory; return False if the
        folder does not take it: lay its blobs out again, for another segment."""
        size, captures = self._preparation.estimate(chosen)
        segment = self._find(chosen.model_id, folder, size, captures)
        if segment is None:
            return False
        draft = self._preparation.prepare(chosen, segment, producer, sequence)
        added = draft.end - segment.size
        if folder is None:
            segment.append(draft)
            kept = sum(len(event.key) + len(event.value) + OVERHEAD for event in draft.events)
            segment.reserved += added + kept
            self._open_bytes += added + kept
            self._budget.free(reserved - added - kept)
        elif folder.append(segment, draft):
            self._budget.free(reserved)
        else:
            self._close(segment)
            return False
        for reason in draft.problems:
            INCOMPLETE_CAPTURES.labels(reason).inc()
        is_full = segment.exchanges >= self._most or segment.size >= self._bytes
        if is_full or not segment.key:
            self._close(segment)
        while self._open_bytes > self._budget.limit * _OPEN_SHARE:
            self._close(next(iter(self._open.values())))
        return True

    def _find(
        self, model_id: str, folder: Folder | None, size: int, captures: int
    ) -> Segment | None:
        """Return the open segment of a model; open one if there is none that it fits into."""
        segment = self._open.get(model_id)
        if segment is not None:
            fits = segment.has_room(size, captures, limit=self._bytes)
            if fits and (segment.file is None) == (folder is None):
                return segment
            self._close(segment)
        if len(self._open) >= _MOST_OPEN:
            self._close(next(iter(self._open.values())))
        segment = Segment(
            model_id, prefix=self._prefix, packed=self.is_packed, opened=time.monotonic()
        )
        if folder is not None and not folder.open(segment):
            return None
        self._open[model_id] = segment
        return segment

    def close_due(self, *, all: bool = False) -> None:
        """Close the segments whose time is up."""
        until = time.monotonic() - self._seconds
        for segment in list(self._open.values()):
            if not all and segment.opened > until:
                return
            self._close(segment)

    def _close(self, segment: Segment) -> None:
        self._open.pop(segment.model_id, None)
        self._open_bytes -= segment.reserved
        closed = self._spools.close_segment(segment)
        if segment.exchanges:
            self._send(closed)
