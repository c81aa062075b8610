"""How long compressors take on a CPU."""

from __future__ import annotations

# Seconds to encode and decode a byte of dense float32 gradients: milliseconds for 100 MB in 100
# tensors, from the table of `make benchmark-codecs` in docs/compression.md (2 cores, TensorFlow
# 2.21). A test compares the two.
_MILLISECONDS = {
    "bf16": 24.4,
    "dgc": 135.0,
    "fp16": 19.3,
    "int8": 32.2,
    "onebit": 50.9,
    "powersgd": 19.0,
    "qsgd": 124.0,
    "randomk": 25.5,
    "signsgd": 37.6,
    "terngrad": 102.0,
    "threshold": 165.0,
    "topk": 137.0,
}
SECONDS_PER_BYTE = {name: milliseconds * 1e-3 / 1e8 for name, milliseconds in _MILLISECONDS.items()}
# What each payload takes to decode, by that, where payloads are gathered: from the table of
# `make benchmark-payloads` there. The test compares these too.
DECODING = {
    "bf16": 0.25,
    "dgc": 0.09,
    "int8": 0.26,
    "onebit": 0.31,
    "qsgd": 0.24,
    "signsgd": 0.26,
    "terngrad": 0.15,
    "threshold": 0.23,
    "topk": 0.09,
}
# The same where a sum is decoded: once, so that only its place in the step depends on this share,
# which was not measured.
_OF_A_SUM = 0.3


def seconds(name: str | None, dense: int, gathered: int) -> tuple[float, float]:
    """The seconds to encode and to decode gradients.

    Args:
        name: of the compressor; None for none. Others than tfdist's own take no time here.
        dense: the bytes of the gradients.
        gathered: how many payloads a replica decodes.
    """
    whole = SECONDS_PER_BYTE.get(name or "", 0.0) * dense
    share = DECODING.get(name or "", _OF_A_SUM)
    return (1 - share) * whole, share * whole * gathered
