"""How replicas and processes exchange tensors: engines carry bytes and decide nothing.

`contract` says what an engine can do. `replica_context` is the engine of a single process.
`current` finds the engine of the running strategy. `processes` is how processes talk to each other
outside of steps. The engines for several processes are in the folders of their strategies.
"""
