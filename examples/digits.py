"""Trains a small CNN on scans of handwritten digits, on one device or on several.

Writes history.csv, learning_curves.png and model.keras.
"""

from __future__ import annotations

import math

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import common

Split = tuple[np.ndarray, np.ndarray]


def load_data() -> tuple[Split, Split, Split]:
    """1257 scans to train with, 180 to validate and 360 to test, the same at every run."""
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype("float32")
    x, x_test, y, y_test = train_test_split(
        images, digits.target, test_size=360, stratify=digits.target, random_state=0
    )
    x, x_validation, y, y_validation = train_test_split(
        x, y, test_size=180, stratify=y, random_state=0
    )
    return (x, y), (x_validation, y_validation), (x_test, y_test)


def training_samples(split: Split, seed: int) -> tf.data.Dataset:
    """The samples without end, in a new order each epoch, each shifted by up to one pixel.

    They depend on the seed alone, not on how often the data set was iterated before.
    """
    images, labels = split
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(tf.range(len(labels)), seed=[seed, epoch])
        return tf.data.Dataset.from_tensor_slices(
            (tf.gather(padded, order), tf.gather(labels, order))
        )

    def shift(index: tf.Tensor, sample: tuple) -> tuple[tf.Tensor, tf.Tensor]:
        image, label = sample
        return tf.image.stateless_random_crop(image, images.shape[1:], seed=[seed, index]), label

    return tf.data.Dataset.counter().flat_map(one_epoch).enumerate().map(shift)


def build_model(updates: int) -> keras.Model:
    """A compiled CNN for 8 x 8 images.

    Args:
        updates: number of updates over which the learning rate falls to zero.
    """
    # Smooth throughout, without ReLU and max pooling: where such a layer has a kink, a rounding
    # error can decide between two gradients, and runs that should be equal part.
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="gelu"),
            keras.layers.Conv2D(64, 3, strides=2, padding="same", activation="gelu"),
            keras.layers.Conv2D(128, 3, padding="same", activation="gelu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="gelu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    learning_rate = keras.optimizers.schedules.CosineDecay(0.05, updates)
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9, nesterov=True),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    """Trains, reports and writes the results."""
    parser = common.make_parser(__doc__, epochs=30, global_batch_size=32, out="out/digits")
    args = common.parse(parser)
    strategy = common.make_strategy(parser, args)
    keras.utils.set_random_seed(args.seed)
    train, validation, test = load_data()

    def samples() -> tf.data.Dataset:
        return training_samples(train, args.seed)

    steps_per_epoch = math.ceil(len(train[0]) / args.global_batch_size)
    updates = math.ceil(args.epochs * steps_per_epoch / args.accumulation_steps)
    with strategy.scope():
        model = build_model(updates)
    throughput = common.Throughput()
    history = model.fit(
        samples().batch(args.global_batch_size, drop_remainder=True),
        validation_data=validation,
        epochs=args.epochs,
        steps_per_epoch=steps_per_epoch,
        shuffle=False,
        callbacks=common.make_callbacks(strategy, args.out, throughput),
    )
    _, accuracy = model.evaluate(*test, batch_size=args.global_batch_size, verbose=0)

    model.save(args.out / "model.keras")
    # All processes take part in training, also in that of the comparison; one reports.
    compared = common.compare(build_model, samples, strategy, args) if args.compare else None
    if not common.is_chief(strategy):
        return
    common.plot_learning_curves(
        history,
        [
            common.Panel("loss", "cross-entropy (nats per image)"),
            common.Panel("accuracy", "accuracy (% of the images)", scale=100),
        ],
        f"Handwritten digits, {args.global_batch_size * args.accumulation_steps} images per update",
        args.out / "learning_curves.png",
    )
    print(common.describe(strategy))
    print(throughput.report(samples=args.epochs * steps_per_epoch * args.global_batch_size))
    print(f"test accuracy: {accuracy:.4f} on {len(test[0])} images")
    print(f"results: {args.out.resolve()}")
    if compared:
        print(compared)


if __name__ == "__main__":
    main()
