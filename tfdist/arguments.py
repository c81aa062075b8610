"""Checks of arguments by their types, each with one error that shows what was received.

Nothing here imports TensorFlow, so the command line uses it too.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Mapping

_LONGEST_SHOWN = 200


def check_bool(name: str, value: object) -> None:
    """Raises ValueError unless the argument `name` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={shown(value)}")


def check_path(name: str, value: object) -> None:
    """Raises TypeError unless the argument `name` is a path."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise TypeError(f"`{name}` must be a path. Received: {name}={shown(value)}")


def why_unwritable(path: str | os.PathLike) -> str:
    """Why no file can be written at `path`, and beside it first; "" if it can.

    A file that is there stays as it is.
    """
    file = pathlib.Path(path)
    is_new = not file.exists()
    try:
        with file.open("a"):
            pass
        if is_new:
            file.unlink()
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
            pass
    except OSError as error:
        return error.strerror or str(error)
    return ""


def problem_with_file(called: str, name: str, path: str | os.PathLike) -> ValueError | None:
    """Why what is `called` so, the argument `name`, cannot be written at `path`; None if it can."""
    if why := why_unwritable(path):
        return ValueError(
            f"The {called} must be a file that can be written, in a folder that exists: "
            f"{why}. Received: {name}={os.fspath(path)!r}"
        )
    return None


def check_callable(name: str, value: object) -> None:
    """Raises TypeError unless the argument `name` can be called."""
    if not callable(value):
        raise TypeError(f"`{name}` must be a function. Received: {name}={shown(value)}")


def check_instance(name: str, value: object, kind: type | tuple[type, ...], called: str) -> None:
    """Raises TypeError unless the argument `name` is an instance of `kind`.

    Args:
        name: what the argument is called.
        value: what was received.
        kind: the class, or several of them.
        called: what users call it.
    """
    if not isinstance(value, kind):
        raise TypeError(
            f"`{name}` must be a `{called}`. Received: {name}={shown(value)} of type {type(value)}"
        )


def check_environ(environ: object) -> None:
    """Raises TypeError unless the argument `environ` is a mapping, as `os.environ` is."""
    check_instance("environ", environ, Mapping, "mapping of environment variables")


def shown(value: object) -> str:
    """`value` as text for a message: one line, cut where it is too long.

    Example:

    >>> from tfdist.arguments import shown
    >>> shown(10**5000)
    'an int that is too long to be shown'
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a value that cannot be printed must not hide the error about it
        return f"an {type(value).__name__} that is too long to be shown"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
