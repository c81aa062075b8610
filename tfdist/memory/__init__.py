"""What a training step needs: `tfdist.memory.estimate`."""

from __future__ import annotations

from tfdist.memory.estimate import Estimate, estimate

__all__ = ["Estimate", "estimate"]
