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
    local = options.local
    if local is not None and not local.is_synchronous:
        given = {
            "accumulation_steps": options.accumulation_steps > 1,
            "compression": options.compression is not None,
            "`after`": local.after > 0,
            "`fragments`": local.fragments > 1,
            "`overlap`": local.overlap > 0,
            'rounds by time (`steps="2s"`)': local.seconds is not None,
        }
        refused = [name for name, is_given in given.items() if is_given]
        if refused:
            raise ValueError(
                "In an elastic job (`tfdist run --min`) `local` takes a number of `steps`, and "
                "what else belongs to a round must not be lost with a rank. Start the job without "
                f"--min, or leave out: {', '.join(refused)}. "
                f"Received: {refused} with local={local} in an elastic job"
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
