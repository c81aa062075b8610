"""Streaming DiLoCo among processes, or among the devices of one."""

import dataclasses
import time

import keras

import tfdist
from tests.local_steps import by_hand, streamed
from tests.local_steps.by_hand import CASES
from tests.multi_process.scenarios import local_steps
from tests.multi_process.scenarios.local_steps import bits, copies, make
from tfdist.step.local_rounds import LocalRounds

# What depends on how processes exchange values, or on what they know of each other's parts.
BY_HAND = (
    "streamed: both",
    "streamed: sent by the last update",
    "streamed: unknown length",
    "streamed: BatchNormalization",
    "streamed: everything",
)
_QSGD = tfdist.compression.QSGD(7, norm="max", error_feedback=True, min_bytes=0)
_POWERSGD = tfdist.compression.PowerSGD(1, min_bytes=0)


def by_hands(here):
    """As the scenario of the same name of other local steps."""
    return local_steps.by_hands(here, BY_HAND)


def resumed(here):
    """What an interrupted training comes to, by how it was saved, and one that was not."""
    # Without `use_ema`, which at the end of `fit` puts the averages in the place of the weights.
    case = dataclasses.replace(CASES["streamed: everything"], optimizer=by_hand.of("Adam"))
    return local_steps.resumed(here, case)


def lossless(here):
    """The weights where a codec sends everything."""
    case = streamed.STREAMED["both, the mean"]
    strategy = make(here, case, compression=tfdist.compression.RandomK(1.0, min_bytes=0))
    model, _ = by_hand.fit(case, strategy)
    return {"weights": copies(strategy, model.weights)}


def coded(here):
    """Differences that are coded: the weights, the loss, and what is left to be sent."""
    case = CASES["streamed: both"]
    found = {}
    for name, compression in (("qsgd", _QSGD), ("powersgd", _POWERSGD)):
        strategy = make(here, case, compression=compression)
        monitor = tfdist.callbacks.CompressionMonitor()
        model, history = by_hand.fit(case, strategy, epochs=6, callbacks=[monitor])
        local = strategy.experimental_local_results
        parts = model.optimizer.compression_state.parts
        found[name] = {
            "bits": bits(strategy, model.weights),
            "losses": history.history["loss"],
            "ratios": history.history["compression_ratio"],
            "residuals": [local(part["residual"])[0].numpy() for part in parts],
        }
    return found


class _Delayed:
    """Makes this rank's exchanges beside steps late, and notes when they run.

    Args:
        seconds: how late.
    """

    def __init__(self, seconds):
        self._seconds, self.times = seconds, []
        self._exchange_of = LocalRounds.exchange_of

    def __enter__(self):
        exchange_of = self._exchange_of

        def delayed_exchange_of(rounds, number):
            function = exchange_of(rounds, number)

            def exchange():
                begun = time.monotonic()
                time.sleep(self._seconds)
                function()
                self.times.append((begun, time.monotonic()))

            return exchange

        LocalRounds.exchange_of = delayed_exchange_of
        return self

    def __exit__(self, *error):
        LocalRounds.exchange_of = self._exchange_of


class _Steps(keras.callbacks.Callback):
    """Notes when steps have ended."""

    decides_in_batches = False
    changes_variables = False

    def __init__(self):
        super().__init__()
        self.times = []

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.monotonic())


def delayed(here):
    """Weights with and without exchanges that one rank runs late, and what ran beside them."""
    case = dataclasses.replace(CASES["streamed: both"], local=streamed.streaming(8, 2, 3))
    found = {}
    late = 0.3 * (here.rank == 0)
    for name, seconds, compression in (
        ("at once", 0.0, None),
        ("late", late, None),
        ("where it is merged", None, None),
        ("late, coded", late, _QSGD),
        ("where it is merged, coded", None, _QSGD),
    ):
        strategy, steps = make(here, case, compression=compression), _Steps()
        strategy.engine.runs_beside_steps = seconds is not None
        with _Delayed(seconds) as exchanges:
            model, _ = by_hand.fit(case, strategy, epochs=1, callbacks=[steps])
        found[name] = {
            "bits": bits(strategy, model.weights),
            "beside": [
                sum(begin < step < end for step in steps.times) for begin, end in exchanges.times
            ],
        }
    return found
