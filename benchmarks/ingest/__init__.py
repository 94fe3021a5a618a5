"""Events per second and CPU per event of one ingester, beside plain COPY of the same rows."""
