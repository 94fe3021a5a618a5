"""Tools of operators: the doctor, reconciliation, the smoke test, figures for gauges."""
