"""A strategy with its options, and the code that makes it."""

from __future__ import annotations

import dataclasses

from tfdist.compression.base import Compressor
from tfdist.local.choices import LocalSteps

Compression = str | Compressor | None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A strategy with its options.

    Attributes:
        strategy: the name of a backend.
        compression: a compressor or its name, or None.
        local: how replicas train apart, or None.
        sharding: what is divided among the ranks, or None.
        exchange: "ring" or "hierarchical".
        reducers: the number of processes that only sum, besides the workers.
        pull_compression: the name of what codes the weights that workers read from parameter
            servers, or None.
        synchronous: whether the workers of parameter servers make each update together. All other
            strategies do so in any case.
    """

    strategy: str
    compression: Compression = None
    local: LocalSteps | None = None
    sharding: str | None = None
    exchange: str = "ring"
    reducers: int = 0
    pull_compression: str | None = None
    synchronous: bool = False

    @property
    def has_servers(self) -> bool:
        """Whether the weights are on parameter servers."""
        return self.strategy == "parameter_server"

    @property
    def is_asynchronous(self) -> bool:
        """Whether each worker makes updates of its own."""
        return self.has_servers and not self.synchronous

    @property
    def waits_in_each_step(self) -> bool:
        """Whether no worker begins a step before all have ended the step before."""
        return not self.is_asynchronous and self.local is None

    @property
    def is_exact(self) -> bool:
        """Whether training has the result of one device."""
        changes = (self.compression, self.pull_compression, self.local) != (None, None, None)
        return not changes and not self.is_asynchronous

    @property
    def kinds(self) -> tuple[str, ...]:
        """What a model may not go with: its strategy, and its options, with values and without."""
        given = (f"{name}={value}" for name, value in self.options.items())
        return self.strategy, *self.settings, *given

    @property
    def options(self) -> dict[str, str]:
        """The options that differ from the defaults, as they are written."""
        given: dict[str, str] = {}
        for name in ("compression", "sharding", "pull_compression"):
            if (value := getattr(self, name)) is not None:
                given[name] = f'"{value}"' if isinstance(value, str) else _written(value)
        if self.local is not None:
            given["local"] = _written(self.local)
        if self.exchange != "ring":
            given["exchange"] = f'"{self.exchange}"'
        if self.synchronous:
            given["staleness"] = "tfdist.staleness.Synchronous()"
        return given

    @property
    def settings(self) -> dict[str, str]:
        """The options, and what `tfdist run` is given."""
        return self.options | ({"reducers": str(self.reducers)} if self.reducers else {})

    @property
    def code(self) -> str:
        """The line of code that makes the strategy."""
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return f'tfdist.Strategy("{self.strategy}"{options})'

    @property
    def title(self) -> str:
        """The line of code, and what else is to be started, for a sentence."""
        return f"{self.code} with {self.reducers} reducers" if self.reducers else self.code


def _written(value: LocalSteps | Compressor) -> str:
    """The call that makes it, without the defaults."""
    module = "tfdist.compression" if isinstance(value, Compressor) else "tfdist"
    values = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    given = [f"{field.name}={value!r}" for field, value in values if value != field.default]
    return f"{module}.{type(value).__name__}({', '.join(given)})"


ONE_DEVICE = Candidate("one device")
