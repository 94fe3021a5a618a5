"""Postgres, S3 and Kafka together: started at once, stopped in the reverse order."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from . import kafka, postgres, s3
from .folder import LocalFolder
from .leftover_processes import end_leftovers

_REVERSE = (kafka.NAME, s3.NAME, postgres.NAME)


@dataclass(frozen=True, slots=True)
class Servers:
    """The three servers, ready."""

    postgres: postgres.Postgres
    s3: s3.S3
    kafka: kafka.Kafka


def end_what_is_left(folder: LocalFolder, programs: Sequence[str]) -> list[str]:
    """End what an earlier start left running: `programs` in their order, then the servers.

    Returns the names of those that were running.
    """
    signals = dict.fromkeys((*programs, *_REVERSE), signal.SIGTERM)
    return end_leftovers(folder, signals | {postgres.NAME: postgres.STOP_SIGNAL})


@contextmanager
def running_servers(
    folder: LocalFolder,
    *,
    ports: Mapping[str, int],
    buckets: tuple[str, ...],
    topic: str,
    partitions: int,
) -> Iterator[Servers]:
    """Run the three servers as long as the block runs; end first what an earlier start left.

    `ports`: those of Postgres and S3, by their names. Kafka's test broker takes any free one.
    Must be called by the main thread, with the folder made and locked. Raises LocalStackError.
    """
    end_what_is_left(folder, ())
    with ExitStack() as stack:
        database = postgres.start_postgres(folder, ports[postgres.NAME])
        stack.callback(database.running.stop)
        objects = s3.start_s3(folder, ports[s3.NAME], buckets)
        stack.callback(objects.running.stop)
        broker = kafka.start_kafka(folder, topic, partitions)
        stack.callback(broker.running.stop)
        yield Servers(database, objects, broker)
