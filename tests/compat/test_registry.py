"""A touch of an attribute that is absent is an error in plain words, never a new attribute."""

import sys
import types

import pytest

from tfdist.compat import registry
from tfdist.compat.registry import ADDED, READ, REPLACED, WRITTEN, MissingAttributeError

REASONS = {"why": "steps hang without it", "versions": "Keras 3.15", "instead": "a public one"}


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_table(monkeypatch):
    monkeypatch.setattr(registry, "TOUCHES", list(registry.TOUCHES))


@pytest.fixture
def library(monkeypatch):
    """A module in which there is a class, as in Keras."""
    module = types.ModuleType("library")

    class Layer:
        present = 1

        def __init__(self):
            self.of_instance = 2

        def call(self, x, y=None):
            return x

    module.Layer = Layer
    module.function = lambda x: x + 1
    monkeypatch.setitem(sys.modules, "library", module)
    return module


def declared(owner, name, kind, *arguments):
    return registry.touch(owner, name, kind, *arguments, **REASONS)


def test_what_is_there_is_read_written_and_replaced(library):
    layer = library.Layer()
    assert declared("library:Layer", "present", READ).of(layer) == 1
    declared("library:Layer", "of_instance", WRITTEN).write(layer, 5)
    assert layer.of_instance == 5
    declared("library", "function", REPLACED, "x").replace(
        lambda original: lambda x: 10 * original(x)
    )
    assert library.function(1) == 20
    declared("library:Layer", "__int__", ADDED).add(lambda self: 3)
    assert int(layer) == 3


def test_an_attribute_may_be_written_before_its_owner_has_made_it(library):
    layer = library.Layer.__new__(library.Layer)
    declared("library:Layer", "of_instance", WRITTEN).write(layer, 5)
    assert layer.of_instance == 5


def write_absent(library):
    declared("library:Layer", "renamed", WRITTEN).write(library.Layer(), 1)


def replace_absent(library):
    declared("library:Layer", "renamed", REPLACED).replace(lambda original: original)


def read_absent(library):
    declared("library:Layer", "renamed", READ).get()


def read_absent_of_an_instance(library):
    declared("library:Layer", "renamed", READ).of(library.Layer())


def override_absent(library):
    @registry.overrides("renamed", **REASONS)
    class Own(library.Layer):
        def renamed(self):
            pass

    own = registry.TOUCHES[-1]
    library.Layer.__module__, library.Layer.__qualname__ = "library", "Layer"
    registry.TOUCHES[-1] = registry.Touch(**{**vars(own), "owner": "library:Layer"})
    registry.check_overrides()


@pytest.mark.parametrize(
    "use", [write_absent, replace_absent, read_absent, read_absent_of_an_instance, override_absent]
)
def test_an_absent_attribute_is_named_with_what_to_do(library, use):
    with pytest.raises(MissingAttributeError) as raised:
        use(library)
    message = str(raised.value)
    import keras
    import tensorflow as tf

    assert message.startswith("library:Layer.renamed is gone in the installed versions")
    assert f"tensorflow {tf.__version__}, keras {keras.__version__}" in message
    assert "steps hang without it" in message and "verified with Keras 3.15" in message
    assert "pip install 'tensorflow>=2.20" in message
    assert not hasattr(library.Layer, "renamed")


def test_a_write_of_an_absent_attribute_leaves_the_object_alone(library):
    layer = library.Layer()
    with pytest.raises(MissingAttributeError):
        declared("library:Layer", "renamed", WRITTEN).write(layer, 1)
    assert vars(layer) == {"of_instance": 2}


@pytest.mark.parametrize("owner", ["library:Gone", "library:Layer.Gone", "library.gone"])
def test_an_absent_owner_is_named(library, owner):
    found = declared(owner, "call", REPLACED)
    with pytest.raises(MissingAttributeError, match="is gone, as there is no "):
        found.replace(lambda original: original)
    assert owner in found.problem()


def test_other_arguments_are_not_passed_on_in_the_wrong_places(library):
    found = declared("library:Layer", "call", REPLACED, "self", "y")
    with pytest.raises(MissingAttributeError, match=r"takes the arguments .'self', 'x', 'y'., not"):
        found.replace(lambda original: original)
    assert declared("library:Layer", "call", REPLACED, "self", "x").problem() is None


def test_an_override_must_have_the_parameters_of_what_it_overrides():
    import keras

    @registry.overrides("call", **REASONS)
    class Own(keras.layers.Dense):
        def call(self, other, **kwargs):
            pass

    assert registry.TOUCHES[-1].arguments == ("self", "other")
    with pytest.raises(MissingAttributeError, match="Dense.call takes the arguments .'self', 'inp"):
        registry.check_overrides()
