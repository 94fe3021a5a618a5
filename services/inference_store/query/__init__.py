"""Queries: the filter language, plans, pages, counts, aggregates."""
