"""Export jobs: everything that matches, written to the bucket as parts.

1. list    the uids that match, in order, in lists of 10,000 or so. The lists are the snapshot, the
           position at which a restarted job goes on, and what erasures look their uids up in.
2. write   one object for each list. What was erased meanwhile is left out, and counted as `gone`.
3. end     the manifest, which names every part with its SHA-256.

Parts are deleted when the export expires or is cancelled, and when an erasure takes a member: then
the part is written again without it.
"""
