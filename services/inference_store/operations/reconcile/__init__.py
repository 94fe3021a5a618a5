"""Comparing what the bucket holds with what the index knows, in the order of their keys."""
