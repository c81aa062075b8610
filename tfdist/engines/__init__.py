"""How replicas and processes exchange tensors: what carries bytes, and decides nothing.

`contract` says what an engine can do, `replica_context` is the one of a single process, `current`
finds the one of the strategy that runs, and `processes` is how processes meet outside of steps.
Those of several processes are with their strategies.
"""
