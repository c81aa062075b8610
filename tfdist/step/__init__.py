"""The stages of one training step, in order: weighting, accumulation, exchange, update."""
