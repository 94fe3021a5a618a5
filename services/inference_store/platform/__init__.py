"""Shared by all services: settings, logs, metrics, traces, health, Kafka clients, failpoints."""
