"""The real servers of the tests: Postgres, Kafka and MinIO, each without Docker.

`python -m tests.servers` builds or fetches them into a cache folder outside the clone.
"""
