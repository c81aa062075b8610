"""Keras' random seeds, and the other state that Keras keeps per thread."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.registry import KERAS, READ, REPLACED, touch
from tfdist.structures import Structure

_NEXT = touch(
    *("keras.src.random.seed_generator:SeedGenerator", "next", REPLACED, "self", "ordered"),
    why="Keras keeps one seed state, equal on all replicas, so every replica would draw the same "
    "dropout mask",
    versions=KERAS,
    instead="a `SeedGenerator` that knows about replicas",
)


def hook_seeds(hook: Callable[[Any, Callable[[], Any], Any], Any]) -> None:
    """Makes Keras draw random numbers with the seed `hook(generator, draw_next, seed)`.

    `draw_next()` advances the generator by one and returns the next seed.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def next_seed(self: keras.random.SeedGenerator, ordered: bool = True) -> Any:
            draw = functools.partial(original, self, ordered)
            return hook(self, draw, draw())

        return next_seed

    _NEXT.replace(make)


_THREADS: dict[str, str] = {
    "why": "a strategy runs each replica in a separate thread, and in a new thread Keras starts "
    "with its default seeds and dtype policy",
    "versions": KERAS,
    "instead": "a state of Keras that all threads of a process share",
}
_TRACKER = touch("keras.src.backend.common.global_state", "GLOBAL_STATE_TRACKER", READ, **_THREADS)
_SET_ATTRIBUTE = touch(
    *("keras.src.backend.common.global_state", "set_global_attribute", READ, "name", "value"),
    **_THREADS,
)
_GLOBAL_SEED = touch("keras.src.utils.rng_utils", "GLOBAL_RANDOM_SEED", READ, **_THREADS)
_GLOBAL_GENERATOR = touch(
    *("keras.src.random.seed_generator", "global_seed_generator", REPLACED), **_THREADS
)
_SEED_GENERATOR = "global_seed_generator"  # its name in Keras' state

_thread = threading.local()


class StateOfThread:
    """The state that Keras keeps per thread and replicas need: random seeds and the dtype policy.

    The object holds the state of the thread that constructs it. The threads of replicas adopt it.

    Args:
        strategy: the strategy whose replicas this thread runs.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self._state = _TRACKER.get().__dict__

    @contextlib.contextmanager
    def adopted(self) -> Iterator[None]:
        """Gives this state to the calling thread while the context lasts.

        The dtype policy and the global seed stay at the end. The thread either ends with the
        context or had the same values before.
        """
        for name in ("dtype_policy", _GLOBAL_SEED.get()):
            _SET_ATTRIBUTE.get()(name, self._state.get(name))
        _thread.origin = self
        try:
            yield
        finally:
            _thread.origin = None

    def seed_generator(self) -> keras.random.SeedGenerator:
        """The generator for random numbers without a seed; created at first use, as in Keras.

        A generator that was created outside of the strategy's scope is replaced by one inside it,
        which continues from the same state.
        """
        found = self._state.get(_SEED_GENERATOR)
        is_ours = self._strategy.extended.variable_created_in_scope
        if found is None or not is_ours(found.state.value):
            # Created in a new thread, where no function is being traced: a function that is being
            # traced must not create variables.
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                found = thread.submit(self._make_seed_generator, found).result()
            self._state[_SEED_GENERATOR] = found
        return found

    def _make_seed_generator(self, previous: Structure) -> keras.random.SeedGenerator:
        state = None if previous is None else previous.state.numpy()
        with self._strategy.scope():
            if state is None:
                return keras.random.SeedGenerator()
            generator = keras.random.SeedGenerator(seed=0)
            generator.state.assign(state)
            return generator


@contextlib.contextmanager
def default_seeds_kept() -> Iterator[None]:
    """Afterwards Keras draws, where no seed is given, as if nothing had been drawn meanwhile."""
    found = getattr(_TRACKER.get(), _SEED_GENERATOR, None)
    state = None if found is None else found.state.numpy()
    try:
        yield
    finally:
        if found is None:
            _SET_ATTRIBUTE.get()(_SEED_GENERATOR, None)
        else:
            found.state.assign(state)


def install() -> None:
    """Lets all replicas draw from one generator, which belongs to the thread that runs them."""

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def global_seed_generator() -> keras.random.SeedGenerator:
            origin = getattr(_thread, "origin", None)
            return original() if origin is None else origin.seed_generator()

        return global_seed_generator

    _GLOBAL_GENERATOR.replace(make)
