"""DistributedOptimizer: a Keras optimizer that applies the gradient of the global batch."""

from tfdist.optimizer.distributed import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
