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
# The part of that which decodes. It was not measured by itself. With gathered payloads each
# replica decodes all of them.
_DECODING = 0.3


def seconds(name: str | None, dense: int, gathered: int) -> tuple[float, float]:
    """The seconds to encode and to decode gradients.

    Args:
        name: of the compressor; None for none. Others than tfdist's own take no time here.
        dense: the bytes of the gradients.
        gathered: how many payloads a replica decodes.
    """
    whole = SECONDS_PER_BYTE.get(name or "", 0.0) * dense
    return (1 - _DECODING) * whole, _DECODING * whole * gathered
