"""Signing in at the issuer of a store, and the tokens that come of it."""
