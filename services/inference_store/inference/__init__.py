"""Inferences, without any I/O: events, metadata, task types, identity, object layout, errors."""
