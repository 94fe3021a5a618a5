"""Metrics of every service, and of those that know the ledger."""

from .registry import counter, gauge

BUILD = gauge("build_info", "1, with the version as a label.", "version")
READY = gauge("ready", "1 while a part was ready when /health/ready was last asked.", "part")
HEARTBEAT = gauge("heartbeat_age_seconds", "Time since the service's loop last turned.")
CONNECTIONS = gauge("connections", "Connections that are open now, by port.", "port")
CONNECTIONS_REFUSED = counter(
    "connections_refused_total",
    "Connections closed at once: `all` are taken, or all of one `address`.",
    *("port", "limit"),
)
CONNECTIONS_LATE = counter(
    "connections_late_total",
    "Connections closed because a `head`, a `body`, the next request (`idle`) or the reading of an"
    " answer (`write`) took too long.",
    *("port", "late"),
)
LEDGER_APART = gauge(
    "ledger_apart", "1 while the ledger in the bucket and Postgres are apart, and nothing is done."
)
