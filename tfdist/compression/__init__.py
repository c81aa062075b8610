"""Gradient compression: fewer bytes for each exchange, on every backend.

`tfdist.Strategy("horovod", compression="topk")` uses one compressor for all layers. A dict of
patterns gives different layers different compressors. docs/compression.md says which one to choose.
"""

from tfdist.compression.base import Compressor, Exchange, Payload, Result, State, Step
from tfdist.compression.cast import BF16, FP16
from tfdist.compression.dgc import DGC
from tfdist.compression.none import Noop, Uncompressed
from tfdist.compression.powersgd import PowerSGD
from tfdist.compression.quantize import QSGD, Int8, TernGrad
from tfdist.compression.registry import available, get, register
from tfdist.compression.sign import OneBit, SignSGD
from tfdist.compression.sparsify import RandomK, Threshold, TopK

__all__ = [
    "BF16",
    "DGC",
    "FP16",
    "QSGD",
    "Compressor",
    "Exchange",
    "Int8",
    "Noop",
    "OneBit",
    "Payload",
    "PowerSGD",
    "RandomK",
    "Result",
    "SignSGD",
    "State",
    "Step",
    "TernGrad",
    "Threshold",
    "TopK",
    "Uncompressed",
    "available",
    "get",
    "register",
]
