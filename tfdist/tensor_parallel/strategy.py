"""The strategy of a mesh: its replicas are the model groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from typing_extensions import Unpack

from tfdist import compat
from tfdist.arguments import check_bool
from tfdist.options import CommonOptions, Options, takes_options
from tfdist.processes.agreement import Agreement
from tfdist.processes.shared_variables import rates
from tfdist.strategies.engine_extended import EngineExtended
from tfdist.strategies.multi_process import MultiProcessStrategy
from tfdist.structures import Gradient
from tfdist.tensor_parallel.gradients import finished
from tfdist.tensor_parallel.saving import axis_of

if TYPE_CHECKING:
    from tfdist.tensor_parallel.mesh import Mesh

_ALLOWED = ("accumulation_steps", "bucket_bytes", "log_all_ranks")


class MeshStrategy(MultiProcessStrategy, tf.distribute.Strategy):
    """Synchronous training of the model groups of a mesh; see `tfdist.tensor_parallel.Mesh`.

    A rank averages gradients with the ranks that have the same parts of layers.

    Args:
        mesh: the mesh.
        log_all_ranks: whether all ranks show progress, not only rank 0.
        **options: `accumulation_steps` and `bucket_bytes`; see `tfdist.Options`.

    Raises:
        ValueError: for other options.
    """

    @takes_options
    def __init__(
        self, mesh: Mesh, *, log_all_ranks: bool = False, **options: Unpack[CommonOptions]
    ):
        self._given: dict[str, Any] = dict(options)
        if log_all_ranks:
            self._given["log_all_ranks"] = log_all_ranks
        refused = sorted(set(options) - set(_ALLOWED))
        if refused:
            raise ValueError(
                f"The strategy of a mesh takes {', '.join(_ALLOWED)}: a rank has parts of layers, "
                f"which other options do not know. Leave them out. Received: {refused}"
            )
        common = Options(**options)  # type: ignore[arg-type]
        check_bool("log_all_ranks", log_all_ranks)
        self._mesh = mesh
        compat.install_collectives()
        compat.separate_collectives(self)
        engine = mesh.engines.data
        super().__init__(EngineExtended(self, mesh.engines.device, engine))
        self._init_processes(common, engine, log_all_ranks, mesh.processes)

    def agreements(
        self, model: keras.Model, variables: Callable[[keras.Model], list[tf.Variable]]
    ) -> Sequence[Agreement]:
        """First of all ranks on what all have, then of those with the same parts on the rest."""

        def common(model: keras.Model) -> list[tf.Variable]:
            of_all = [v.value for v in model.variables if axis_of(v) is None] + rates(model)
            known = {id(variable) for variable in of_all}
            return [variable for variable in variables(model) if id(variable) in known]

        everyone = Agreement(model, self, common, self._mesh.processes)
        return [everyone, *super().agreements(model, variables)]

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0 of the mesh, which writes files and progress."""
        return self._mesh.rank == 0

    def check_same(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError for other options than those that the strategy was made with."""
        if options and dict(options) != self._given:
            raise ValueError(
                "A mesh has one strategy, which was made with other options. Received: "
                f"{dict(options)} after {self._given}"
            )

    def finish_gradients(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: list[Gradient | None],
        variables: list[keras.Variable],
    ) -> list[Gradient | None]:
        """Averages what model groups have averaged; see `FinishesGradients`."""
        return finished(self._mesh, self._mesh.functions, optimizer, gradients, variables)
