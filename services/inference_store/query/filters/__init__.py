"""Filters: a CQL2 tree given types, and what it means of one inference."""
