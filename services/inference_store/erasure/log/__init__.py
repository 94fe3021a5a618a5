"""The parts that the ledger, the certificates and the chain of the audit share.

Each of these keeps its own entries. Here are their canonical form, the links between them, the keys
and signatures, and the locked copy of a chain's end.
"""
