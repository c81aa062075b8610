"""Weights on their way to the workers, compressed.

Half precision rounds the weights themselves. Any other compressor would leave too little of them.
So the parameter server keeps h, what the worker has, and sends the difference v − h of the weights
v, compressed: C(v − h). Both then add C(v − h) to h. What was not sent is in the next difference.

That is EF21 for weights instead of gradients: Richtárik et al., "EF21: A New, Simpler,
Theoretically Better, and Practically Faster Error Feedback" (NeurIPS 2021), algorithm 1. That both
directions are compressed, each with its own memory: Tang et al., "DoubleSqueeze: Parallel
Stochastic Gradient Descent with Double-pass Error-Compensated Compression" (ICML 2019).
"""

from __future__ import annotations

import zlib

import tensorflow as tf

from tfdist.compression.base import Compressor, Payload, Step
from tfdist.parameter_server.contracts import ChiefStrategy


class PullCodec:
    """Codes values on a parameter server, and decodes them on a worker.

    Server and worker compute what the worker has by the same operations from the same payload. So
    both have the same numbers.

    Args:
        compressor: a compressor that `check_pull` has let pass.
        seed: for the random numbers of compressors.

    Attributes:
        codes_differences: whether `known` is what the worker has; else it is None.
    """

    def __init__(self, compressor: Compressor, seed: int):
        self.compressor = compressor
        self.codes_differences = codes_differences(compressor)
        self._seed = seed

    def encode(
        self,
        key: str,
        value: tf.Tensor,
        known: tf.Tensor | None,
        number: tf.Tensor,
        worker: tf.Tensor,
    ) -> Payload:
        """What travels for a value; on the parameter server.

        Args:
            key: the value's key.
            value: the value.
            known: what the worker has.
            number: int scalar, different for each reading of a worker.
            worker: int scalar, the index of the worker.
        """
        wanted = value if known is None else value - known
        shape = value.shape if self.compressor.per_tensor else [value.shape.num_elements()]
        of_key = zlib.crc32(f"pull {self._seed} {key}".encode()) & 0x7FFFFFFF
        fold_in = tf.random.experimental.stateless_fold_in
        common = fold_in(tf.constant([of_key, 0], tf.int32), tf.cast(number, tf.int32))
        seeds = Step(common, fold_in(common, tf.cast(worker, tf.int32)))
        shaped = tf.cast(tf.reshape(wanted, shape), tf.float32)
        payload, _ = self.compressor.encode(shaped, {}, seeds)
        return payload

    def decode(self, payload: Payload, known: tf.Tensor | None, like: tf.Tensor) -> tf.Tensor:
        """What the worker has then; on the worker, and on the parameter server.

        Args:
            payload: as from `encode`.
            known: as for `encode`.
            like: a tensor of the value's shape and dtype; its numbers are not used.
        """
        found = self.compressor.decode(payload, tf.TensorSpec(like.shape, like.dtype))
        return found if known is None else known + found


def codes_differences(compressor: Compressor) -> bool:
    """Whether differences are coded, not the weights themselves."""
    return compressor.error_feedback or not compressor.rounds_elements


def check_pull(compressor: Compressor) -> None:
    """Raises ValueError for a compressor that cannot code weights."""
    cls = type(compressor)
    if cls.exchange is not Compressor.exchange or cls.init is not Compressor.init:
        why = "has a state or exchanges of its own, but a worker only receives"
    elif compressor.stages() != [(0, compressor)]:
        why = "begins later than with the first update; leave out `start_step`"
    elif not compressor.shrinks:
        why = "may leave more unsent than there was, so that workers drift away from the weights"
    else:
        return
    raise ValueError(
        "`pull_compression` takes half precision ('fp16', 'bf16') and compressors of one tensor "
        "such as 'int8', 'topk', 'signsgd' or QSGD(norm='max'). This one "
        f"{why}. Received: pull_compression={compressor}"
    )


def codec_of(strategy: ChiefStrategy) -> PullCodec | None:
    """What codes the weights under a strategy; None for nothing."""
    if strategy.pull is None:
        return None
    return PullCodec(strategy.pull, strategy.options.seed)
