"""Tensor parallelism: layers that several processes compute together, each with a part.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism" (arXiv 1909.08053), section 3.
"""

from __future__ import annotations

from tfdist.tensor_parallel import runs  # noqa: F401  # checks what Keras trains
from tfdist.tensor_parallel.attention import MultiHeadAttention
from tfdist.tensor_parallel.dense import Dense, FeedForward
from tfdist.tensor_parallel.embedding import Embedding
from tfdist.tensor_parallel.mesh import Mesh

__all__ = ["Dense", "Embedding", "FeedForward", "Mesh", "MultiHeadAttention"]
