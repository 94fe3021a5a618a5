"""Reconciliation: compares the bucket with the index, in the order of their keys."""
