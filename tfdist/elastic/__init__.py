"""Elastic groups: ranks that die or leave, while the others go on with the result of one device.

The launcher says who is in the group (`link`, `formation`). Whatever the ranks do together is an
operation (`operations`): a sum of numbers, or a step of a model. `group` repeats an operation in
which a rank was lost, after the others have formed a new group. `state` takes back what a step has
changed. `functions` makes steps of Keras' loops such operations, `processes` does so for everything
that the ranks tell each other between steps, and `metrics` keeps the dead ranks' part of metrics.
"""
