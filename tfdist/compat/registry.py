"""The table of all private attributes of TensorFlow and Keras that tfdist uses.

Each use is declared as a `Touch`, in the file that needs it: what is used, why, and what would
replace it. Attributes are written and replaced through a touch only, because a touch raises where
the attribute is absent. A plain assignment would make a new attribute that nobody reads, and
training would hang or be wrong. `tfdist doctor --private` prints the table, and `tests/compat`
tests each row.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from tfdist import _versions

_Class = TypeVar("_Class", bound=type)

KERAS = f"Keras {_versions.tested('keras')}"
TENSORFLOW = f"TensorFlow {_versions.tested('tensorflow')}"
BOTH = f"{TENSORFLOW}, {KERAS}"

READ, WRITTEN, REPLACED, OVERRIDDEN, ADDED = "read", "written", "replaced", "overridden", "added"


class MissingAttributeError(RuntimeError):
    """The installed TensorFlow or Keras does not have an attribute that tfdist needs."""


@dataclasses.dataclass(frozen=True)
class Touch:
    """One attribute, and what tfdist does with it.

    Attributes:
        owner: "module" or "module:Class"; has the attribute, itself or through its instances.
        name: the attribute's name.
        kind: "read", "written", "replaced", "overridden" in a subclass, or "added" where
            TensorFlow and Keras do not have it.
        why: what tfdist needs the attribute for.
        versions: the versions with which it was verified.
        instead: the public feature that would replace it.
        arguments: for a function, the names of its first parameters, as far as they matter.
    """

    owner: str
    name: str
    kind: str
    why: str
    versions: str
    instead: str
    arguments: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The attribute with its owner, as text for tables and messages."""
        return f"{self.owner}{'.' if ':' in self.owner else ':'}{self.name}"

    def get(self) -> Any:
        """The attribute of the owner itself, which is a module or a class."""
        value = getattr(_find(self), self.name, _ABSENT)
        if value is _ABSENT:
            raise MissingAttributeError(_message(self))
        return value

    def of(self, instance: Any) -> Any:
        """The attribute of one of the owner's instances."""
        value = getattr(instance, self.name, _ABSENT)
        if value is _ABSENT:
            raise MissingAttributeError(_message(self))
        return value

    def write(self, instance: Any, value: Any) -> None:
        """Assigns to the attribute of `instance`; raises unless the owner's code defines it."""
        if not hasattr(instance, self.name) and not self._is_there():
            raise MissingAttributeError(_message(self))
        setattr(instance, self.name, value)

    def replace(self, make: Callable[[Any], Any]) -> None:
        """Puts `make(original)` in the place of the owner's attribute."""
        problem = self.problem()
        if problem is not None:
            raise MissingAttributeError(problem)
        setattr(_find(self), self.name, make(self.get()))

    def add(self, value: Any) -> None:
        """Gives the owner the attribute."""
        setattr(_find(self), self.name, value)

    def problem(self) -> str | None:
        """Why this use fails with the installed versions; None if it works."""
        try:
            there = self._is_there()
        except MissingAttributeError as error:
            return str(error)
        if not there and self.kind != ADDED:
            return _message(self)
        if self.arguments:
            found = tuple(inspect.signature(self.get()).parameters)
            if found[: len(self.arguments)] != self.arguments:
                return _message(self, f"takes the arguments {found}, not {self.arguments},")
        return None

    def _is_there(self) -> bool:
        owner = _find(self)
        return hasattr(owner, self.name) or _assigned(owner, self.name)


TOUCHES: list[Touch] = []
"""All declared touches."""

_ABSENT = object()


def touch(
    owner: str, name: str, kind: str, *arguments: str, why: str, versions: str, instead: str
) -> Touch:
    """Declares the use of an attribute; for the arguments see `Touch`."""
    found = Touch(owner, name, kind, why, versions, instead, arguments)
    TOUCHES.append(found)
    return found


def overrides(*names: str, why: str, versions: str, instead: str) -> Callable[[_Class], _Class]:
    """Declares which attributes of its base class a class overrides.

    A method must have the same parameters in the same order as the method that it overrides. Only
    the last ones may be left to `**kwargs`. `check_overrides` checks this.
    """

    def declare(cls: _Class) -> _Class:
        base = cls.__mro__[1]
        for name in names:
            own = vars(cls)[name]
            arguments = _named_parameters(own) if inspect.isfunction(own) else ()
            owner = f"{base.__module__}:{base.__qualname__}"
            touch(owner, name, OVERRIDDEN, *arguments, why=why, versions=versions, instead=instead)
        return cls

    return declare


def _named_parameters(function: Callable) -> list[str]:
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind not in several]


def check_overrides() -> None:
    """Raises MissingAttributeError if an overridden method is missing in the base class.

    TensorFlow would silently never call the override.
    """
    for found in TOUCHES:
        problem = found.problem() if found.kind == OVERRIDDEN else None
        if problem is not None:
            raise MissingAttributeError(problem)


def _find(found: Touch) -> Any:
    module, _, path = found.owner.partition(":")
    thing: Any
    try:
        thing = importlib.import_module(module)
    except ImportError as error:
        what = f"is gone, as there is no {module} ({error})"
        raise MissingAttributeError(_message(found, what)) from error
    for name in path.split(".") if path else ():
        thing = getattr(thing, name, _ABSENT)
        if thing is _ABSENT:
            raise MissingAttributeError(_message(found, f"is gone, as there is no {found.owner}"))
    return thing


@functools.cache
def _assigned(owner: Any, name: str) -> bool:
    """Whether the source text of a class or of its bases assigns to the attribute."""
    assignment = re.compile(rf"\.{name}\s*(:[^=\n]+)?=(?!=)")
    for cls in inspect.getmro(owner) if inspect.isclass(owner) else ():
        try:
            source = inspect.getsource(cls)
        except (OSError, TypeError):  # built-in
            continue
        if assignment.search(source):
            return True
    return False


def _message(found: Touch, what: str = "is gone") -> str:
    versions = ", ".join(f"{name} {version}" for name, version in _versions.installed().items())
    tested = " ".join(f"'{_versions.requirement(name)}'" for name in ("tensorflow", "keras"))
    return (
        f"{found.place} {what} in the installed versions: {versions}. tfdist needs it: {found.why} "
        f"(verified with {found.versions}). Install versions that tfdist was tested with: "
        f"`pip install {tested}`"
    )
