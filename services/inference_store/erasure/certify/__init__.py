"""Certificates: what each erasure removed, signed, chained, listed and proved."""
