"""What tests of several packages use."""

import pytest

from tests.integrations.trained import train_on_one_device


@pytest.fixture(scope="session")
def digits_on_one_device(tmp_path_factory):
    """The weights that one process trains with `digits.py`."""
    return train_on_one_device(tmp_path_factory.mktemp("one"))
