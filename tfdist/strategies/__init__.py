"""The strategies: what `strategy.scope()` and `strategy.run` do on each backend."""
