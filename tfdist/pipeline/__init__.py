"""Pipeline parallelism: `tfdist.pipeline.stages`."""

from __future__ import annotations

from tfdist.pipeline.stages import stages

__all__ = ["stages"]
