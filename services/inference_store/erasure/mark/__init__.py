"""Marks of inferences that are being erased, claims on their objects, tombstones."""
