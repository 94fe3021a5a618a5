"""Plugins and commands for runs of the tests: groups, durations, failures, steps."""
