"""Pending deletions of inferences, claims on their objects, and tombstones."""
