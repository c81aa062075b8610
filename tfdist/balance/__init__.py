"""Balance: faster replicas take larger parts of each global batch, so that nobody waits for one.

`whole_batches` brings each global batch whole to the step, and `parts` cuts it there. `balancer`
has the shares and measures speeds, `policy` decides what shares come next, and `callback` calls it.
"""
