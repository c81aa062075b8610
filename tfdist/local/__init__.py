"""Local steps: replicas train apart for some steps, then average what they have become."""

from tfdist.local.choices import DiLoCo, LocalSGD, LocalSteps

__all__ = ["DiLoCo", "LocalSGD", "LocalSteps"]
