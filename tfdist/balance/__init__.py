"""Balance: faster replicas take larger parts of each global batch, so that nobody waits for one.

`whole_batches` brings each global batch whole to the step, `parts` cuts it there, `speeds` measures
what the replicas did with their parts, and `policy` decides what parts come next.
"""
