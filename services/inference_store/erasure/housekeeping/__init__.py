"""The store's records of its own work, and how they are deleted in time."""
