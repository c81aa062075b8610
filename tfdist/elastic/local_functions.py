"""The function that Keras calls for batches of `fit`, where ranks train apart in rounds."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist.data.batches import as_tensors
from tfdist.elastic.functions import TrainFunction
from tfdist.elastic.local_rounds import GroupRounds
from tfdist.structures import Structure


class LocalTrainFunction(TrainFunction):
    """Keras' function of `fit`. A step is no operation of the group; only a meeting is."""

    _zeros: Structure = None

    def of_batch(self, batch: Structure) -> Structure:
        """The results of a step with `batch` in this rank."""
        self._check_graph()
        group, rounds = self._group, self._rounds()
        batch = as_tensors(batch)  # the user may write to arrays again
        is_made = not group.is_apart
        with group.operating():
            step = self._traced_for(batch) if is_made else self._passing(batch)
        rounds.begin_step(self._model)
        with group.operating():
            results = step(batch)
        rounds.end_step(batch, is_made=is_made)
        return results

    def _rounds(self) -> GroupRounds:
        assert self.rounds is not None
        return self.rounds

    def _check_graph(self) -> None:
        if self._model.run_eagerly:
            raise ValueError(
                "In an elastic job (`tfdist run --min`) with `local`, a rank that joins traces the "
                "step of the others without running it. Compile with `run_eagerly=False`, or start "
                "the job without --min. Received: run_eagerly=True in `fit`"
            )

    def _traced_for(self, batch: Structure) -> Callable[[Structure], Structure]:
        """The step, traced for the group of now. What it makes is made when it has been traced."""
        generation, function = self._traced
        if generation != self._group.generation:
            function = self._new_function()
            function.get_concrete_function(batch)
            self._rounds().check_traced()
            self._traced = (self._group.generation, function)
        return function

    def _passing(self, batch: Structure) -> Callable[[Structure], Structure]:
        """What takes the place of the step while this rank follows the others.

        Nobody knows their results, so it returns zeros. The first time the variables are made that
        the step makes.
        """
        if self._zeros is None:
            with self._group.alone():
                function = self._new_function().get_concrete_function(batch)
            self._rounds().check_traced()
            self._zeros = tf.nest.map_structure(_zeros_of, function.structured_outputs)
        return lambda batch: self._zeros

    def begin_anew(self) -> None:
        """Nothing: no gradients wait."""


def _zeros_of(output: Structure) -> Structure:
    """Zeros in the place of a tensor that a trace returns; its unknown dimensions are 0."""
    if not isinstance(output, (tf.TensorSpec, tf.Tensor)):
        return output
    shape = () if output.shape.rank is None else [size or 0 for size in output.shape]
    return tf.zeros(shape, output.dtype)
