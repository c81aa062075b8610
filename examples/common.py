"""What the example scripts share: options, strategy, report, learning curves, comparison."""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import matplotlib
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import tfdist

matplotlib.use("Agg")

COMPARED_UPDATES = 20


# --- Options --------------------------------------------------------------------------------------


def _integer_from(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer >= {minimum}. Received: {text!r}")
        return value

    return parse


positive_int = _integer_from(1)


def make_parser(
    description: str | None, *, epochs: int, global_batch_size: int, out: str
) -> argparse.ArgumentParser:
    """The options that all examples have.

    Args:
        description: what the script does.
        epochs: default of `--epochs`.
        global_batch_size: default of `--global-batch-size`.
        out: default of `--out`.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add(
        "--strategy",
        choices=("auto", "mirrored", "none"),
        default="auto",
        help="tfdist strategy; none is plain Keras",
    )
    add(
        "--devices",
        type=positive_int,
        default=1,
        help="number of GPUs, or of virtual CPU devices where there are no GPUs",
    )
    add(
        "--accumulation-steps",
        type=positive_int,
        default=1,
        help="number of batches per update",
    )
    add(
        "--global-batch-size",
        type=positive_int,
        default=global_batch_size,
        help="samples per batch over all devices",
    )
    add("--epochs", type=positive_int, default=epochs, help="number of epochs")
    add("--seed", type=_integer_from(0), default=0, help="seed of weights and shuffling")
    add("--out", type=Path, default=Path(out), help="directory for the results")
    add(
        "--compare",
        action="store_true",
        help=f"also train {COMPARED_UPDATES} updates on one device and compare the weights",
    )
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The checked command line; creates the directory `--out`, so that it cannot fail later."""
    args = parser.parse_args()
    if args.strategy == "none" and (args.devices > 1 or args.accumulation_steps > 1):
        parser.error("--strategy none takes neither --devices nor --accumulation-steps above 1")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: {error}")
    return args


# --- Strategy -------------------------------------------------------------------------------------


def make_strategy(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> tf.distribute.Strategy:
    """The strategy that the options ask for; TensorFlow's default one for `--strategy none`.

    Call it before anything else that uses TensorFlow, because it chooses the devices.
    """
    try:
        devices = _choose_devices(args.devices)
        if args.strategy == "none":
            return tf.distribute.get_strategy()
        options = {"accumulation_steps": args.accumulation_steps}
        if len(devices) > 1:
            options["devices"] = devices
        return tfdist.Strategy(args.strategy, **options)
    except ValueError as error:
        parser.error(str(error))


def _choose_devices(count: int) -> list[str]:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return tfdist.testing.virtual_devices(count)
    if count > len(gpus):
        raise ValueError(f"There are {len(gpus)} GPU(s) here. Received: devices={count}")
    tf.config.set_visible_devices(gpus[:count], "GPU")
    return [f"GPU:{index}" for index in range(count)]


def describe(strategy: tf.distribute.Strategy) -> str:
    """One line on `strategy` and its devices."""
    if strategy is tf.distribute.get_strategy():  # outside of any scope: TensorFlow's default
        name = "none (plain Keras)"
        names = ["GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"]
    else:
        name = type(strategy).__name__
        names = [name.rpartition("device:")[2] for name in strategy.extended.worker_devices]
    if hasattr(strategy, "num_workers"):
        return f"strategy: {name} with {strategy.num_workers} worker(s)"
    devices = strategy.num_replicas_in_sync
    processes = devices // len(names)
    each = f" in each of {processes} processes" if processes > 1 else ""
    return f"strategy: {name} on {devices} device(s): {', '.join(names)}{each}"


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process reports the results: the only one, or the first of several."""
    return getattr(strategy, "is_chief", True)


# --- Callbacks ------------------------------------------------------------------------------------


class Throughput(keras.callbacks.Callback):
    """Measures the training speed without the first step, which builds the graph.

    Validation does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0
        self._seconds = 0.0
        self._begin = 0.0

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Starts the clock."""
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stops the clock."""
        if self._steps:
            self._seconds += time.perf_counter() - self._begin
        self._steps += 1

    def report(self, samples: int) -> str:
        """One line on the speed.

        Args:
            samples: number of samples that all steps together trained on.
        """
        timed = self._steps - 1
        if timed < 1:
            return "throughput: not measured, as there was one step only"
        speed = samples * timed / self._steps / self._seconds
        return f"throughput: {speed:.0f} samples/s, {self._seconds / timed * 1e3:.1f} ms/step"


def make_callbacks(
    strategy: tf.distribute.Strategy, out: Path, throughput: Throughput
) -> list[keras.callbacks.Callback]:
    """The strategy's own callbacks, the measurement of speed and the history as CSV."""
    own = strategy.callbacks() if hasattr(strategy, "callbacks") else []
    return [*own, throughput, keras.callbacks.CSVLogger(out / "history.csv")]


# --- Learning curves ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Panel:
    """One diagram of the learning curves.

    Attributes:
        metric: the metric's name in the history.
        label: what the vertical axis shows, with its unit.
        scale: factor from the metric to that unit.
        baseline: a value to draw as a horizontal line, in that unit, and its name.
    """

    metric: str
    label: str
    scale: float = 1.0
    baseline: tuple[float, str] | None = None


def plot_learning_curves(
    history: keras.callbacks.History, panels: Sequence[Panel], title: str, path: Path
) -> None:
    """Writes train and validation curves over the epochs as a PNG."""
    figure = Figure(figsize=(5.5 * len(panels), 4.2), layout="constrained")
    figure.suptitle(title)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for prefix, name, style in (
            ("", "train, mean over the epoch", "o--"),
            ("val_", "validation, after the epoch", "s-"),
        ):
            values = np.array(history.history[prefix + panel.metric]) * panel.scale
            axes.plot(np.arange(1, len(values) + 1), values, style, markersize=4, label=name)
        if panel.baseline is not None:
            value, name = panel.baseline
            axes.axhline(value, color="0.4", linestyle=":", label=f"{name}, {value:.2f}")
        axes.set_xlabel("epochs trained")
        axes.set_ylabel(panel.label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


# --- Comparison with one device -------------------------------------------------------------------


def compare(
    build_model: Callable[[int], keras.Model],
    make_samples: Callable[[], tf.data.Dataset],
    strategy: tf.distribute.Strategy,
    args: argparse.Namespace,
) -> str:
    """Trains a few updates under `strategy` and in plain Keras; one line on the difference.

    Both start from the same seed and see the same samples. Plain Keras takes the samples of all
    batches of an update in one. The number of updates is small because rounding errors grow with
    every update, on one device as on many.

    Args:
        build_model: makes the compiled model for a number of updates, without dropout, as every
            replica draws its own.
        make_samples: makes the endless data set of single samples, in the same order at every call.
        strategy: the strategy to compare with plain Keras.
        args: the command line.
    """
    steps = args.accumulation_steps

    def train(scope_of: tf.distribute.Strategy, batch_size: int, batches: int) -> list[np.ndarray]:
        keras.utils.set_random_seed(args.seed)
        with scope_of.scope():
            model = build_model(COMPARED_UPDATES)
        data = make_samples().batch(batch_size, drop_remainder=True)
        model.fit(data, steps_per_epoch=batches, shuffle=False, verbose=0)
        return model.get_weights()

    weights = train(strategy, args.global_batch_size, COMPARED_UPDATES * steps)
    expected = train(tf.distribute.get_strategy(), args.global_batch_size * steps, COMPARED_UPDATES)
    difference = max(float(np.abs(a - b).max()) for a, b in zip(weights, expected))
    return (
        f"compare: max |Δw| = {difference:.1e} after {COMPARED_UPDATES} updates of "
        f"{args.global_batch_size} x {steps} samples, against plain Keras on one device"
    )


def to_bits(nats: float) -> float:
    """Converts an entropy in nats to bits."""
    return nats / math.log(2)
