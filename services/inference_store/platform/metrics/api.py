"""Metrics of the api."""

from .registry import counter, gauge, histogram

REQUESTS = counter(
    "api_requests_total", "Requests answered; 499: its client left.", "method", "route", "status"
)
REQUEST_SECONDS = histogram("api_request_seconds", "Time to answer a request.", "route")
IN_PROGRESS = gauge("api_requests_in_progress", "Requests being answered now.")
QUERY_SECONDS = histogram(
    "api_query_seconds",
    "Time of a query in Postgres, by what it answers and by its kinds of condition.",
    *("kind", "form"),
)
QUERY_TIMEOUTS = counter("api_query_timeouts_total", "Queries cut off by the timeout.", "kind")
TURNS = gauge("api_turns_taken", "Queries and streams that run now.", "kind")
TURNS_WAITING = gauge("api_turns_waiting", "Queries that wait for their turn now.", "kind")
TURN_SECONDS = histogram("api_turn_wait_seconds", "Time waited for a turn.", "kind")
TURNS_REFUSED = counter(
    "api_turns_refused_total",
    "Queries and streams that had no turn in time, by whose limit was reached: `caller` or `all`.",
    *("kind", "limit"),
)
STREAMS = counter("api_streams_total", "Streams of inferences, by how they ended.", "ended")
STREAMED = counter("api_streamed_inferences_total", "Inferences sent in streams.")
REPLICA_AWAY = counter(
    "api_replica_away_total",
    "Questions that POSTGRES_DSN answered, as the read replica was unavailable.",
)
REFUSED = counter("api_refused_total", "Requests refused by access control or limits.", "reason")
ISSUER_FETCHES = counter(
    "api_issuer_fetches_total", "Fetches of the OIDC issuer's keys, by outcome.", "outcome"
)
