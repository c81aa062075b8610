"""Workers that make their updates themselves: a call of a worker's function is all that it takes.

Elsewhere the chief makes each update. It must, where it decides something between a gradient and
its update; `needs_chief` says where. Everywhere else a worker reads the weights, computes, and
updates the weights on the parameter servers, several times in one call.

A lock on the first parameter server keeps what the chief's main thread keeps elsewhere: updates are
made one after the other, are all counted, and weights are read between two updates.
"""
