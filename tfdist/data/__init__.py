"""Batches and data sets: how they are divided over replicas and processes."""
