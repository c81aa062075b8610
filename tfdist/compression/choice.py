"""Which compressor each variable gets."""

from __future__ import annotations

import dataclasses
import fnmatch
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.arguments import shown
from tfdist.compression.base import Compressor
from tfdist.compression.registry import get


@dataclasses.dataclass(frozen=True)
class Choice:
    """Compressors by patterns of variables' paths. The first pattern that fits counts.

    Attributes:
        rules: pairs of a pattern and a compressor, or of a pattern and None for no compression.
    """

    rules: tuple[tuple[str, Compressor | None], ...]

    @classmethod
    def of(cls, compression: str | Compressor | Mapping[str, Any] | Choice | None) -> Choice | None:
        """What the option `compression` means; None for no compression at all.

        Args:
            compression: a `Compressor`, the name of one, None, or a dict from patterns to these.

        Raises:
            ValueError: for an unknown name, and for anything else.
        """
        if compression is None or isinstance(compression, Choice):
            return compression
        rules = compression if isinstance(compression, Mapping) else {"*": compression}
        if not rules or not all(isinstance(pattern, str) for pattern in rules):
            raise ValueError(
                "`compression` must be a compressor, its name, or a dict of patterns of variables' "
                f"paths and these. Received: compression={shown(compression)}"
            )
        made = [(pattern, None if c is None else get(c)) for pattern, c in rules.items()]
        return cls(tuple(made)) if any(c is not None for _, c in made) else None

    def get_config(self) -> dict[str, Any]:
        """A dict of plain values: `of` makes an equal choice from it."""
        return {pattern: c and c.get_config() for pattern, c in self.rules}

    @property
    def compressors(self) -> list[Compressor]:
        """All compressors that are used."""
        return [compressor for _, compressor in self.rules if compressor is not None]

    def for_paths(self, paths: Sequence[str]) -> list[Compressor | None]:
        """The compressor of each variable, by its path.

        A pattern is one of `fnmatch`. It is for the whole path, or for the end of the path after a
        "/". A pattern that fits no variable leads only to a warning: the pattern may be for another
        optimizer, or for a frozen layer.

        Raises:
            ValueError: for a pattern that comes too late: earlier patterns fit all its variables.
        """
        chosen = [self._rule(path) for path in paths]
        unused = [p for i, p in enumerate(self._patterns) if i not in chosen and p != "*"]
        hidden = [pattern for pattern in unused if any(_fits(pattern, path) for path in paths)]
        if hidden:
            raise ValueError(
                "The first pattern of `compression` that fits a variable counts: put these before "
                f"the others. Received: {hidden}, which come too late in {self._patterns}"
            )
        if unused:
            warnings.warn(
                f"These patterns of `compression` fit no trainable variable: {unused}. "
                f"The optimizer trains {list(paths)}",
                stacklevel=2,
            )
        return [None if rule is None else self.rules[rule][1] for rule in chosen]

    @property
    def depends_on_names(self) -> bool:
        """Whether the compressor of a variable depends on what the variable is called."""
        return self._patterns != ["*"]

    @property
    def _patterns(self) -> list[str]:
        return [pattern for pattern, _ in self.rules]

    def _rule(self, path: str) -> int | None:
        fitting = (i for i, pattern in enumerate(self._patterns) if _fits(pattern, path))
        return next(fitting, None)


def _fits(pattern: str, path: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"*/{pattern}")
