"""Steps of many workers on a virtual clock; NumPy only.

`compute_times` draws how long workers compute, `simulate` lets them train with a policy of
`tfdist.staleness`, and `failures` lets workers die and come back.
"""
