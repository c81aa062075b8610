"""What a cell of the table depends on: where none of it has changed, the cell holds."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import pathlib
import platform
from collections.abc import Iterable
from types import ModuleType

from tests.equivalence import columns, peers
from tests.equivalence.features import THEMES

_TESTS = pathlib.Path(__file__).resolve().parent
_PACKAGE = _TESTS.parents[1] / "tfdist"
# What decides how every feature is trained and compared.
_COMMON = ("compare.py", "harness.py", "results.py", "worker.py")
_FEATURES = ("features/common.py", "features/examples.py")
# What no training runs.
_NEVER = ("cli", "launcher")
# The launcher's part in it: the environment in which ranks train.
_ALWAYS = ("launcher/members.py", "launcher/ranks.py")
# What no column trains with but the one of parameter servers.
_PARAMETER_SERVER = ("parameter_server", "replay", "staleness", "strategies/parameter_server")
_THEME_OF = {feature.name: theme for theme in THEMES for feature in theme.FEATURES}


def state_of_cell(column: str, feature: str) -> str | None:
    """A checksum of the sources and versions that decide what a cell shows.

    Args:
        column: the name of a column of tfdist's, or of Keras alone.
        feature: the name of the feature.

    Returns:
        The checksum; None where there is no such cell any more.
    """
    theme = _THEME_OF.get(feature)
    if theme is None or column not in {*columns.BY_NAME, *peers.BY_NAME}:
        return None
    return _state(column, theme)


@functools.cache
def _state(column: str, theme: ModuleType) -> str:
    names = ["tensorflow", "keras", "numpy"]
    sources = [_TESTS / name for name in (*_COMMON, *_FEATURES)]
    sources.append(pathlib.Path(theme.__file__ or ""))
    if column in peers.BY_NAME:
        launcher = peers.BY_NAME[column].launcher
        # It takes its part of the batch as tfdist does.
        sources += [_TESTS / "peers.py", *_inside(["data"])]
    else:
        launcher = columns.BY_NAME[column].launcher
        sources += [_TESTS / "columns.py", *_package(bool(columns.BY_NAME[column].workers))]
    if launcher == "horovod":
        names.append("horovod")
    return _checksum(names, sources)


def _package(parameter_server: bool) -> list[pathlib.Path]:
    left_out = {*_inside(_NEVER), *(() if parameter_server else _inside(_PARAMETER_SERVER))}
    kept = set(_inside([""])) - left_out
    return sorted(kept | set(_inside(_ALWAYS)))


def _inside(names: Iterable[str]) -> list[pathlib.Path]:
    """The Python files of tfdist in the folders, and the files, of these names."""
    found = []
    for name in names:
        path = _PACKAGE / name
        if not path.exists():
            raise ValueError(f"There is no such part of tfdist. Received: name={name!r}")
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def _checksum(names: Iterable[str], sources: Iterable[pathlib.Path]) -> str:
    state = hashlib.sha256(platform.python_version().encode())
    for name in names:
        state.update(f" {name} {_version(name)}".encode())
    for path in sources:
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def _version(name: str) -> str:
    """The version that can be imported; TensorFlow's distribution has several names."""
    if name == "horovod":
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return "none"
    return importlib.import_module(name).__version__
