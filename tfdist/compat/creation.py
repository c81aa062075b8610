"""The hook that runs before several processes create a variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Called in every process with the arguments of the variable that it is about to create. Returns the
# arguments to use, and whether the initial value is known to be the same in all processes.
BeforeCreating = Callable[[dict[str, Any]], tuple[dict[str, Any], bool]]


def create_alone(arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Keeps the arguments as they are; the initial value will be sent to all processes."""
    return arguments, False
