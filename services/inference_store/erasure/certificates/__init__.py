"""Certificates of erasures: signed, chained, and over a list of keyed hashes of what went."""
