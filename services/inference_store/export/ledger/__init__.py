"""The ledger of exports: which inferences their parts name, what erasures took, and who has
copies."""
