"""The list of all checks, in the order in which they are reported."""

from collections.abc import Sequence

from . import certificates, clocks, kafka, ledger, object_store, postgres, settings, store
from .finding import Check

CHECKS: Sequence[Check] = (
    Check("settings", "Settings do not conflict.", settings.check_settings),
    Check(
        "postgres", "Postgres answers, is 15 to 18, and can be written to.", postgres.check_postgres
    ),
    Check(
        "postgres clock", "Its clock agrees with ours.", clocks.check_postgres_clock, ("postgres",)
    ),
    Check("migrations", "The tables are this version's.", postgres.check_migrations, ("postgres",)),
    Check("partitions", "Partitions are made ahead.", store.check_partitions, ("migrations",)),
    Check(
        "books",
        "The books close; little waits or is dead.",
        store.check_accounting,
        ("migrations",),
    ),
    Check("retention", "Policies are carried out.", store.check_retention, ("migrations",)),
    Check("token", "API_TOKEN is unset once there are keys.", store.check_token, ("migrations",)),
    Check(
        "links", "A presigned link does not outlive its input.", store.check_links, ("migrations",)
    ),
    Check("kafka", "Kafka answers, and is 3 or newer.", kafka.check_kafka),
    Check("topic", "The topic is there and keeps what it is given.", kafka.check_topic, ("kafka",)),
    Check("lag", "Ingesters keep up.", kafka.check_lag, ("topic", "migrations")),
    Check(
        "certificates",
        "Erasures end with one.",
        certificates.check_certificates,
        ("migrations",),
    ),
    Check("bucket", "Each bucket is there; what is deleted is gone.", object_store.check_buckets),
    Check(
        "ledger",
        "Bucket and Postgres are of one time.",
        ledger.check_ledger,
        ("migrations", "bucket"),
    ),
    Check("object store clock", "Its clock agrees with ours.", clocks.check_object_store_clock),
)
