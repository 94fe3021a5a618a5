"""Tools of operators: the doctor, reconciliation, figures for gauges."""
