"""What elastic jobs cannot do correctly, and refuse."""

from __future__ import annotations

from tfdist.options import Options


def own_loop(what: str) -> ValueError:
    """The error for `what`, which a loop of the user's own has asked for."""
    return ValueError(
        "In an elastic job (`tfdist run --min`) only `fit`, `evaluate` and `predict` can go on "
        "when a rank is lost; start a loop of your own without --min. "
        f"Received: {what} outside of them"
    )


def check_options(options: Options) -> None:
    """Raises ValueError for options that do not survive the loss of a rank."""
    if options.local is not None:
        raise ValueError(
            "With `local` each rank has weights and an optimizer state of its own within a round, "
            "which would be lost with the rank. Start the job without --min, or leave `local` out. "
            f"Received: local={options.local} in an elastic job"
        )
    if options.exchange == "hierarchical":
        raise ValueError(
            "In an elastic job (`tfdist run --min`) a host may lose some of its replicas, so they "
            "are not grouped by host. Start the job without --min, or leave `exchange` out. "
            "Received: exchange='hierarchical' in an elastic job"
        )
    if options.sharding is not None:
        raise ValueError(
            "With `sharding` each rank has a part of the optimizer's state, which would be lost "
            "with the rank. Start the job without --min, or leave `sharding` out. "
            f"Received: sharding={options.sharding!r} in an elastic job"
        )
