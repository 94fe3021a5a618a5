"""Rate limits: a bucket for each caller, in this process alone."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from inference_store.inference.errors import TooManyRequests, Unauthorized

_TOO_MANY_FAILED = (
    "More keys and tokens from this address failed than"
    " INFERENCE_STORE_API_FAILED_TOKENS_PER_MINUTE allows."
)


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    at: float


class RateLimiter:
    """Limits requests by token buckets: each holds a minute's requests and fills evenly.

    If there are too many buckets, the one that was used least recently is dropped.
    """

    def __init__(
        self, per_minute: int, *, most: int = 10_000, clock: Callable[[], float] | None = None
    ) -> None:
        self._size = float(per_minute)
        self._most = most
        self._clock = clock or time.monotonic
        self._buckets: OrderedDict[str, _TokenBucket] = OrderedDict()

    def take(self, name: str, requests: int = 1) -> int:
        """Take so many requests, at most a minute's; return 0, or the whole seconds until there are
        as many."""
        if not self._size:
            return 0
        now = self._clock()
        bucket = self._buckets.setdefault(name, _TokenBucket(self._size, now))
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        bucket.tokens = min(self._size, bucket.tokens + (now - bucket.at) * self._size / 60)
        bucket.at = now
        charged = min(float(requests), self._size)
        if bucket.tokens < charged:
            return max(1, math.ceil((charged - bucket.tokens) * 60 / self._size))
        bucket.tokens -= charged
        return 0

    def give_back(self, name: str) -> None:
        """Return one request that `take` took."""
        if (bucket := self._buckets.get(name)) is not None:
            bucket.tokens = min(self._size, bucket.tokens + 1)


class FailedTokenLimiter:
    """Limits how many tokens of one address may fail; beyond it none of them is checked."""

    def __init__(self, per_minute: int) -> None:
        self._buckets = RateLimiter(per_minute)

    @contextmanager
    def limit(self, client: str | None) -> Iterator[None]:
        """Surround the check of a token. Raises TooManyRequests.

        The token is charged before the check, so that concurrent ones are counted, and returned
        unless the check raises Unauthorized.
        """
        network = find_network(client)
        refuse(self._buckets.take(network), _TOO_MANY_FAILED)
        has_failed = False
        try:
            yield
        except Unauthorized:
            has_failed = True
            raise
        finally:
            if not has_failed:
                self._buckets.give_back(network)


def refuse(wait: int, detail: str) -> None:
    """Raise TooManyRequests if there are seconds to wait."""
    if wait:
        raise TooManyRequests(detail, retry_after_seconds=wait)


def find_network(client: str | None) -> str:
    """Return what counts as one stranger: an address, or the /64 of an IPv6 address, which one host
    has."""
    try:
        address = ip_address((client or "").partition("%")[0])
    except ValueError:
        return client or ""
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped or ip_network((address, 64), strict=False))
