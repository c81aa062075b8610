"""Which compressor each variable gets."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.compression.base import Compressor
from tfdist.compression.registry import get


@dataclasses.dataclass(frozen=True)
class Choice:
    """Compressors by patterns of variables' paths; the first pattern that fits counts.

    Attributes:
        rules: pairs of a pattern and a compressor; None for no compression.
    """

    rules: tuple[tuple[str, Compressor | None], ...]

    @classmethod
    def of(cls, compression: Any) -> Choice | None:
        """What the option `compression` means; None for no compression at all.

        Args:
            compression: a `Compressor`, its name, or a dict of patterns and these; or None.

        Raises:
            ValueError: for an unknown name or something else.
        """
        if compression is None or isinstance(compression, Choice):
            return compression
        rules = compression if isinstance(compression, Mapping) else {"*": compression}
        if not rules or not all(isinstance(pattern, str) for pattern in rules):
            raise ValueError(
                "`compression` must be a compressor, its name, or a dict of patterns of variables' "
                f"paths and these. Received: compression={compression!r}"
            )
        made = [(pattern, None if c is None else get(c)) for pattern, c in rules.items()]
        return cls(tuple(made)) if any(c is not None for _, c in made) else None

    def get_config(self) -> dict[str, Any]:
        """A dict of plain values, of which `of` makes an equal choice."""
        return {pattern: c and c.get_config() for pattern, c in self.rules}

    @property
    def compressors(self) -> list[Compressor]:
        """All compressors that are used."""
        return [compressor for _, compressor in self.rules if compressor is not None]

    def for_paths(self, paths: Sequence[str]) -> list[Compressor | None]:
        """The compressor of each variable, by its path.

        A pattern as of `fnmatch`, for the whole path or for its end after a "/".

        Raises:
            ValueError: for a pattern that fits no variable.
        """
        chosen = [self._rule(path) for path in paths]
        used = [rule for rule, (pattern, _) in enumerate(self.rules) if pattern == "*"]
        unused = [self.rules[i][0] for i in range(len(self.rules)) if i not in {*chosen, *used}]
        if unused:
            raise ValueError(
                "Each pattern of `compression` must be the first that fits a trainable variable's "
                f"path. Received: {unused}, which fit none of {list(paths)}"
            )
        return [None if rule is None else self.rules[rule][1] for rule in chosen]

    def _rule(self, path: str) -> int | None:
        for index, (pattern, _) in enumerate(self.rules):
            if fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"*/{pattern}"):
                return index
        return None
