"""The function that Keras calls for batches of `fit`, where ranks train apart in rounds."""

from __future__ import annotations

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
        group, rounds = self._group, self._rounds()
        batch = as_tensors(batch)  # the user may write to arrays again
        is_made = not group.is_apart
        rounds.begin_step(self._model)
        with group.operating():
            results = self._made(batch) if is_made else self._passed(batch)
        rounds.end_step(batch, is_made=is_made)
        return results

    def _rounds(self) -> GroupRounds:
        assert self.rounds is not None
        return self.rounds

    def _made(self, batch: Structure) -> Structure:
        generation, function = self._traced
        if generation != self._group.generation:
            function = self._new_function()
            function.get_concrete_function(batch)
            self._rounds().check_traced()
            self._traced = (self._group.generation, function)
        return function(batch)

    def _passed(self, batch: Structure) -> Structure:
        """What this rank returns while it follows the others: nobody knows their results.

        The first time the variables are made that the step makes.
        """
        if self._zeros is None:
            with self._group.alone():
                function = self._new_function().get_concrete_function(batch)
            self._rounds().check_traced()
            self._zeros = tf.nest.map_structure(_zeros_of, function.structured_outputs)
        return self._zeros

    def begin_anew(self) -> None:
        """Nothing: no gradients wait."""


def _zeros_of(spec: Structure) -> Structure:
    return tf.zeros(spec.shape, spec.dtype) if isinstance(spec, tf.TensorSpec) else spec
