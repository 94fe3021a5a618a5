"""Previews: what a policy would delete, what a change of it changes, why an inference is kept."""
