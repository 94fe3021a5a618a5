"""Deletion, by policy and by request. An erasure goes through these steps, in this order:

policies      say how long inputs, responses and inferences are kept
holds         protect inferences from every deletion
requests      take up what somebody asks for, its cancellation, and the waiver of its held rest
selection     finds what has expired and what was requested
losses        counts what would go by such a selection, and changes nothing
preview       does so for a policy that is not in force yet
batches       makes `pending_deletions`, which no query shows
claims        say which of their objects go: `object_claims`, and of segments `segment_claims`
quarantine    finds and removes dead letters and parked events
rows          deletes the rows of what is gone, and whole time partitions
certificates  prove what was erased, with `erased_lists` and `proofs`

`progress` is the erasure itself, as it is stored from the first step to the last. `ledger` has
every decision before it takes effect, every certificate, and where the audit stood; `log` has what
is signed, and the keys. `audit_chain` makes the audit tamper-evident, and verifies it.
`housekeeping` deletes the store's records of its own work. `locks` order these steps against
writers, and elect the service that leads; `runs` say when it works.
"""
