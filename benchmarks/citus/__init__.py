"""The query benchmark's population on one plain Postgres and on a Citus of three nodes."""
