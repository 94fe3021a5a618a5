"""The index in Postgres: engine, tables, partitions, registrations, writing, offset accounting."""
