"""Stage 3 in sharded training, for whole variables: each replica gets the sums for its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.engines.replica_context import static_id
from tfdist.options import Options
from tfdist.step.exchange import Packing, timed_rows
from tfdist.step.sharding.owners import Owned
from tfdist.step.sharding.to_owners import sums_of_own
from tfdist.step.sharding.totals import OwnGradients


class TotalsOfOwned(OwnGradients):
    """Gives each replica the sums of the gradients of the variables that it owns.

    Args:
        options: the bucket size.
        specs: the trainable variables' shapes and dtypes.
        owners: the replica that owns each of them.
    """

    def __init__(self, options: Options, specs: Sequence[tf.TensorSpec], owners: Sequence[int]):
        super().__init__(options, specs)
        self._owned = [
            Owned(tuple(spec.shape.as_list()), spec.dtype, owner)
            for spec, owner in zip(specs, owners)
        ]

    def sum(self, packing: Packing, packed: list, number: tf.Tensor) -> list[Any]:
        """The sums for this replica's variables; None where there is no gradient at all.

        For a variable of another replica there is an empty tensor.
        """
        del number
        gradients = packing.unpack(packed)
        given = [place for place, gradient in enumerate(gradients) if gradient is not None]
        sparse = [place for place in given if isinstance(gradients[place], tf.IndexedSlices)]
        owned = {place: self._owned[place] for place in given if place not in sparse}
        found = [None if g is None else tf.zeros([0], g.dtype) for g in gradients]
        sums = sums_of_own({p: gradients[p] for p in owned}, owned, self._bucket_bytes)
        for place, total in sums.items():
            found[place] = total
        for place, rows in zip(sparse, timed_rows([gradients[place] for place in sparse])):
            if self._owned[place].owner == static_id():
                found[place] = rows
        return found
