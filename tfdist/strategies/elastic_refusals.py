"""What elastic jobs cannot do correctly, and refuse."""

from __future__ import annotations


def own_loop(what: str) -> ValueError:
    """The error for `what`, which a loop of the user's own has asked for."""
    return ValueError(
        "In an elastic job (`tfdist run --min`) only `fit`, `evaluate` and `predict` can go on "
        "when a rank is lost; start a loop of your own without --min. "
        f"Received: {what} outside of them"
    )
