"""What runs on a worker: a model's step, and what sends its gradients away."""
