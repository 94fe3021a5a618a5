"""CQL2, the filter language: its tree. It knows no table and no metadata key."""
