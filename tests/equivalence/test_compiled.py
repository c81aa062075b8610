"""Steps that XLA compiles: training equals that on one device whose steps XLA compiles."""

import pytest

from tests.equivalence import compare
from tests.equivalence.columns import COMPILED
from tests.equivalence.parameters import cells

# Functions that are compiled as a whole, and steps that need the other replicas in between.
_USUAL = {
    "mirrored-2-compiled": (
        "accumulation_steps=3, steps_per_execution=4, remainders",
        "mixed_float16, overflow on the last replica, short batch",
    ),
    "mirrored-3-compiled": ("last batch of 1 sample",),
    "multi_worker-2-compiled": ("masked mean by hand, last batch of 3",),
}


# XLA on a CPU has no operation for their empty rows, on one device neither.
_SPARSE_INPUTS = "sparse inputs"


@pytest.mark.parametrize(("column", "feature"), list(cells(COMPILED, _USUAL)))
def test_compiled_steps_equal_one_compiled_device(column, feature, results, request):
    if feature.name.startswith(_SPARSE_INPUTS):
        refused = pytest.mark.xfail(reason="XLA refuses SparseFillEmptyRows", strict=True)
        request.node.add_marker(refused)
    ranks = results.of(column, feature)
    expected = results.reference(feature, jit_compile=True)
    problems = compare.problems(ranks, expected, None, history=feature.history)
    assert not problems, "\n".join(problems)
