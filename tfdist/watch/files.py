"""Files that a reader sees as a whole: the old one or the new one, never a part."""

from __future__ import annotations

import os
import pathlib
import secrets


def write_whole(path: str | os.PathLike, text: str) -> None:
    """Writes `text` beside `path`, and then replaces the file there; a link stays a link.

    What has no UTF-8, as a part of a file's name, is written as an escape.

    A new file may be read by those whom the umask lets; an old one, by the same as before.

    Raises:
        OSError: when it cannot be written. The old file is as it was.
    """
    path = pathlib.Path(os.path.realpath(path))
    # Not by `tempfile`, whose files only their owner may read: the umask says who may.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with partial.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        if path.exists():
            partial.chmod(path.stat().st_mode & 0o777)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
