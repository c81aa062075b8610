"""Where workers get their batches."""
