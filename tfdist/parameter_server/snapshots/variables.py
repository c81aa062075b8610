"""The variables on the parameter servers, whoever has made them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import tensorflow as tf

from tfdist import compat


class MadeVariables:
    """Keeps track of variables while they are in use.

    Attributes:
        number: how many were ever made; it tells whether there are new ones.
    """

    def __init__(self) -> None:
        self.number = 0
        self._lock = threading.Lock()
        self._made: list[weakref.ref[tf.Variable]] = []

    def note(self, variables: Sequence[tf.Variable]) -> None:
        """Adds variables that were made. Those that are known already change nothing."""
        with self._lock:
            self._made = [made for made in self._made if made() is not None]
            known = {id(made()) for made in self._made}
            inner = [compat.inner_variable(variable) for variable in variables]
            new = [weakref.ref(variable) for variable in inner if id(variable) not in known]
            self.number += len(new)
            self._made += new

    def in_use(self) -> list[tf.Variable]:
        """Those that are still in use, in the order in which they were made."""
        with self._lock:
            found = [made() for made in self._made]
        return list({id(variable): variable for variable in found if variable is not None}.values())
