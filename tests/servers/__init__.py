"""The real servers that the tests talk to: Postgres, Kafka and MinIO, each had without Docker.

`python -m tests.servers` builds or fetches them into a cache folder outside the clone.
"""
