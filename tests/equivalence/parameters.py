"""The parameters of a test over columns that the default suite trains a few features in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import keras
import pytest

from tests.equivalence.columns import Column
from tests.equivalence.features import FEATURES
from tfdist import _versions
from tfdist.strategies.horovod.backend import is_installed

_KERAS = _versions.release(keras.__version__)


def cells(
    columns: Sequence[Column], usual: Mapping[str, Sequence[str]], left_out: Sequence[str] = ()
) -> Iterator:
    """Every feature in each of `columns`.

    Args:
        columns: where features are trained.
        usual: by the name of a column, the features that the default suite trains in it.
        left_out: features that are trained in none.
    """
    known = {feature.name for feature in FEATURES}
    assert {name for names in usual.values() for name in names} <= known
    for column in columns:
        for feature in FEATURES:
            if _KERAS < feature.since or feature.name in left_out:
                continue
            marks = [] if feature.name in usual.get(column.name, ()) else [pytest.mark.full]
            if column.in_own_processes:
                marks.append(pytest.mark.job)
            if column.strategy == "horovod":
                marks.append(pytest.mark.skipif(not is_installed(), reason="make horovod"))
            yield pytest.param(column, feature, marks=marks, id=f"{column.name}-{feature.name}")
