"""Deletion, by policy and by request.

`policies` and `holds` say what goes and what stays; `preview` says it beforehand. `select` finds
what has expired, `erasures` what somebody asked to be erased. Then come `mark`, `delete` and
`certificates`. `ledger` and `audit_chain` keep what was decided and done; `housekeeping` deletes
the store's records of its own work.
"""
