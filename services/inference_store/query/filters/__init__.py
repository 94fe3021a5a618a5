"""Filters: a CQL2 tree with types, and its value for one inference."""
