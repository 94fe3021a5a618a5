"""Deletion, by policy and by request. An erasure goes through these steps, in this order:

policies      say how long inputs, responses and inferences are kept
holds         protect inferences from every deletion
request       takes up what somebody asks for, its cancellation, and the waiver of its held rest
estimate      counts what a request would remove, and changes nothing
preview       does the same for a policy that is not in force yet
select        finds what has expired, what was requested, and its quarantined events
mark          makes pending deletions, which no query shows, and claims their objects
delete        removes rows, shared metadata, orphans and quarantined events
verify        records what is still there after its deletion, and why
certify       proves what was erased

`progress` is the erasure itself, as it is stored from the first step to the last. `ledger` has
every decision before it takes effect, and `audit_chain` makes the audit tamper-evident; `log` is
what these two and the certificates have in common. `housekeeping` deletes the store's records of
its own work. `fence` orders these steps against writers, and `runs` and `leader_election` say when
the retention service works, and which one.
"""
