"""Compressors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from tfdist.arguments import shown
from tfdist.compression.base import Compressor

_CLASSES: dict[str, type[Compressor]] = {}
_Class = TypeVar("_Class", bound=type[Compressor])


def register(cls: _Class) -> _Class:
    """Makes a class of compressors known under its `name`. Use it as a decorator.

    Args:
        cls: a subclass of `tfdist.compression.Compressor`.

    Raises:
        ValueError: when the class has no name, or the name of another class.
        TypeError: when `cls` is no class of compressors.

    Example:

    >>> import tfdist
    >>> class Half(tfdist.compression.FP16):
    ...     name = "half"
    >>> _ = tfdist.compression.register(Half)
    >>> tfdist.compression.get("half").name
    'half'
    """
    if not (isinstance(cls, type) and issubclass(cls, Compressor)):
        raise TypeError(
            f"Only subclasses of Compressor can be registered. Received: cls={shown(cls)}"
        )
    known = _CLASSES.get(cls.name)
    if not cls.name or (known and known.__qualname__ != cls.__qualname__):
        raise ValueError(
            "A compressor needs a name that no other one has. "
            f"Received: name={cls.name!r} for {cls.__name__}; taken: {sorted(_CLASSES)}"
        )
    _CLASSES[cls.name] = cls
    return cls


def available() -> list[str]:
    """The names of all compressors.

    Example:

    >>> import tfdist
    >>> "topk" in tfdist.compression.available()
    True
    """
    return sorted(_CLASSES)


def get(compressor: str | Mapping[str, Any] | Compressor, **options: Any) -> Compressor:
    """Makes a compressor.

    Args:
        compressor: a name, what `Compressor.get_config` returned, or a compressor, which is
            returned as it is.
        **options: the options of the compressor's class.

    Raises:
        ValueError: for an unknown name and for options out of range.
        TypeError: for an option that the class does not have.

    Example:

    >>> import tfdist
    >>> tfdist.compression.get("topk", ratio=0.05).ratio
    0.05
    """
    if isinstance(compressor, Compressor):
        return compressor
    if isinstance(compressor, Mapping):
        options = {**compressor, **options}
        compressor = options.pop("name", None)
    if not isinstance(compressor, str) or compressor not in _CLASSES:
        raise ValueError(
            f"Unknown compressor. Available: {available()}. Received: {shown(compressor)}"
        )
    return _CLASSES[compressor](**options)
