"""What is asked before several processes make a variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Called in all processes with the arguments of a variable that each is about to make; returns them,
# and whether the initial value is known to be the same in all.
BeforeCreating = Callable[[dict[str, Any]], tuple[dict[str, Any], bool]]


def create_alone(arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Leaves a variable as it is, and its initial value to be sent."""
    return arguments, False
