"""Four virtual CPU devices for the whole suite; TensorFlow cannot change them later."""

import gc

import keras  # noqa: F401  # imported here, so that what it makes is frozen below

import tfdist

DEVICES = tfdist.testing.virtual_devices(4)

# What the imports have made is not searched for garbage.
gc.collect()
gc.freeze()
