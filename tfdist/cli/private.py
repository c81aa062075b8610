"""`tfdist doctor --private`: the private attributes that tfdist uses, and which do not work."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import click


def touches() -> list[dict[str, Any]]:
    """The private attributes of TensorFlow and Keras, each with the fields of `registry.Touch`.

    The "problem" says why tfdist cannot use the attribute with the installed versions, or is None.

    Raises:
        click.ClickException: when TensorFlow or Keras cannot be imported, or lacks a class that
            tfdist extends.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        from tfdist.compat import registry  # imports TensorFlow
    except ImportError as error:
        raise click.ClickException(f"tfdist cannot use what is installed: {error}") from error
    return [
        {**dataclasses.asdict(touch), "place": touch.place, "problem": touch.problem()}
        for touch in sorted(registry.TOUCHES, key=lambda touch: touch.place)
    ]


def as_text(found: list[dict[str, Any]]) -> str:
    """The list for people. An attribute with a problem begins with an exclamation mark."""
    lines = []
    for touch in found:
        lines += [
            f"{touch['place']} ({touch['kind']})",
            f"    why: {touch['why']}",
            f"    verified with: {touch['versions']}",
            f"    would be replaced by: {touch['instead']}",
        ]
        if touch["problem"]:
            lines.append(f"!   {touch['problem']}")
    problems = sum(touch["problem"] is not None for touch in found)
    lines.append(f"{len(found)} attributes, {problems or 'none'} with a problem")
    return "\n".join(lines)
