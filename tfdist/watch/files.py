"""Files that a reader sees as a whole: the old one or the new one, never a part."""

from __future__ import annotations

import os
import pathlib
import tempfile


def write_whole(path: str | os.PathLike, text: str) -> None:
    """Writes `text` beside `path`, and then replaces the file there; a link stays a link.

    Raises:
        OSError: when it cannot be written. The old file is as it was.
    """
    path = pathlib.Path(os.path.realpath(path))
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(partial, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(partial, path)
    finally:
        pathlib.Path(partial).unlink(missing_ok=True)
