"""The results of verification: blocked objects, and the reasons of failures."""
