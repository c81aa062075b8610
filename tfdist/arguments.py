"""Checks of arguments by their types, each with one error that shows what was received.

Nothing here imports TensorFlow, so the command line uses it too.
"""

from __future__ import annotations

import errno
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

    A file that is there stays as it is. A device or a pipe is refused: a file would replace it.
    """
    file = pathlib.Path(os.path.realpath(path))  # a link to no file stays one, too
    try:
        is_new = not file.exists()
        if not (is_new or file.is_file() or file.is_dir()):
            return "Not a regular file"
        with file.open("a"):
            pass
        if is_new:
            file.unlink()
        with tempfile.NamedTemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        return error.strerror or str(error)
    return ""


def problem_with_file(
    called: str, name: str, path: str | os.PathLike, makes_folder: bool = False
) -> ValueError | None:
    """Why a file cannot be written at `path`; None if it can.

    Args:
        called: what users call the file.
        name: what the argument is called.
        path: of the file.
        makes_folder: whether to make its folder, and those around it.
    """
    why = (_why_no_folder(path) if makes_folder else "") or why_unwritable(path)
    if why:
        where = "a folder that exists or can be made" if makes_folder else "a folder that exists"
        return ValueError(
            f"The {called} must be a file that can be written, in {where}: {why}. "
            f"Received: {name}={os.fspath(path)!r}"
        )
    return None


def _why_no_folder(path: str | os.PathLike) -> str:
    """Why the folder of `path` cannot be made; "" once it is there."""
    try:
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # and is none
        return os.strerror(errno.ENOTDIR)
    except OSError as error:
        return error.strerror or str(error)
    return ""


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
