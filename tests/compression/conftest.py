"""These tests make no Keras models."""

import pytest


@pytest.fixture(autouse=True)
def _fresh_keras_state():
    """Stands in for the suite's fixture of this name, which takes 0.2 s after each test."""
