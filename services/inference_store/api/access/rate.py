"""Rate limits: a bucket for each caller, in this process alone."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from inference_store.store.errors import TooManyRequests


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Buckets:
    """A bucket holds a minute's requests and fills evenly; of those least used, the oldest goes."""

    def __init__(
        self, per_minute: int, *, most: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._size = float(per_minute)
        self._most = most
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, name: str) -> int:
        """Take one request; 0, or after how many whole seconds there will be one."""
        if not self._size:
            return 0
        now = self._clock()
        bucket = self._buckets.setdefault(name, _Bucket(self._size, now))
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        bucket.left = min(self._size, bucket.left + (now - bucket.at) * self._size / 60)
        bucket.at = now
        if bucket.left < 1:
            return max(1, math.ceil((1 - bucket.left) * 60 / self._size))
        bucket.left -= 1
        return 0


def refuse(wait: int, detail: str) -> None:
    """Raise TooManyRequests where there are seconds to wait."""
    if wait:
        raise TooManyRequests(detail, retry_after_seconds=wait)


def network_of(client: str | None) -> str:
    """Who counts as one stranger: an address, or the /64 of one of IPv6, which one host has."""
    try:
        address = ip_address((client or "").partition("%")[0])
    except ValueError:
        return client or ""
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped or ip_network((address, 64), strict=False))
