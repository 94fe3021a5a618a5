"""What all services share: settings, logs, metrics, traces, health, Kafka clients, failpoints."""
