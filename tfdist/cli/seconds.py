"""Seconds on a command line."""

from __future__ import annotations

import click

from tfdist.limits import MOST_SECONDS


class Seconds(click.ParamType):
    """A number of seconds on a command line."""

    name = "seconds"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """A number of seconds, greater than 0 and not too large to wait for."""
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            self.fail(f"must be a number of seconds > 0. Received: {value!r}", param, ctx)
        if seconds > MOST_SECONDS:
            allowed = f"must be at most {MOST_SECONDS:,.0f} seconds"
            self.fail(f"{allowed}. Received: {value!r}", param, ctx)
        return seconds
