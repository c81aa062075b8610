"""The largest numbers that options take, with their reasons; needs no TensorFlow."""

INT32_MAX = 2**31 - 1
"""The largest count of steps, workers and the like: what int32 tensors hold."""

INT64_MAX = 2**63 - 1
"""The largest seed and number of bytes."""

FLOAT32_MAX = 3.4028234e38
FLOAT32_SMALLEST = 1.1754944e-38
"""The range of positive float32 numbers with full precision; TensorFlow treats less as 0."""

MOST_SECONDS = 1e6
"""The longest time to wait, 11 days: operating systems count milliseconds in 32 bits."""

LEAST_FOR_REDUCERS = 64 * 1024
"""The bytes from which reducers sum a vector: shorter ones take few rounds between the workers."""

MOST_DEVICES = 1024
"""The most devices, processes and servers on one machine."""
