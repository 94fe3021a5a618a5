"""Requests: an erasure, its cancellation, the waiver of what holds protect."""
