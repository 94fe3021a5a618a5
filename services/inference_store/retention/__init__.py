"""The retention service: deletes by policy and on request, on a schedule."""
