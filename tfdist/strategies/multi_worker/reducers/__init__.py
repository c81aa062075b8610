"""Reduction servers: processes that hold no model, and sum what the workers send them."""
