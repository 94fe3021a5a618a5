"""Every check there is, in the order that they are told."""

from collections.abc import Sequence

from . import certificates, clocks, kafka, ledger, object_store, postgres, settings, store
from .finding import Check

CHECKS: Sequence[Check] = (
    Check("settings", "Settings do not conflict.", settings.look),
    Check("postgres", "Postgres answers, is 15 to 18, and can be written to.", postgres.look),
    Check("postgres clock", "Its clock agrees with ours.", clocks.of_postgres, ("postgres",)),
    Check("migrations", "The tables are this version's.", postgres.migrations, ("postgres",)),
    Check("partitions", "Partitions are made ahead.", store.partitions, ("migrations",)),
    Check("books", "The books close; little waits or is dead.", store.books, ("migrations",)),
    Check("retention", "Policies are carried out.", store.retention, ("migrations",)),
    Check("links", "A presigned link does not outlive its input.", store.links, ("migrations",)),
    Check("kafka", "Kafka answers, and is 3 or newer.", kafka.look),
    Check("topic", "The topic is there and keeps what it is given.", kafka.topic, ("kafka",)),
    Check("lag", "Ingesters keep up.", kafka.lag, ("topic", "migrations")),
    Check(
        "certificates",
        "Erasures end with one, where a key signs them.",
        certificates.look,
        ("migrations",),
    ),
    Check("bucket", "Each bucket is there; what is deleted is gone.", object_store.look),
    Check("ledger", "Bucket and Postgres are of one time.", ledger.look, ("migrations", "bucket")),
    Check("object store clock", "Its clock agrees with ours.", clocks.of_object_store),
)
