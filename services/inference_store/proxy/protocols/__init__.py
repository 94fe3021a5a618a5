"""The protocols that the proxy captures: one table."""
