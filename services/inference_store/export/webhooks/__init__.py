"""Webhooks: what erasures took of an export is sent to its receiver (Standard Webhooks)."""
