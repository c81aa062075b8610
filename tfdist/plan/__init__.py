"""What more replicas would bring: predicted step times, simulated steps, and which strategy to use.

`tfdist plan` shows it. `tracing.py`, `device.py` and `scripts.py` need TensorFlow, the others do
not.
"""
