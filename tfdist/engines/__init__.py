"""How replicas and processes exchange tensors: what carries bytes, and nothing above it."""
