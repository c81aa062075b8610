"""Sharded training: each replica updates its part of every variable, and keeps state for it only.

After Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
(SC 2020), sections 5.1 and 5.2: the optimizer's state in parts, and gradients in parts.
"""
