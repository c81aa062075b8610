"""Trains a small Transformer on the source text of Python's standard library.

It predicts one character from those before it, on one device or on several, and is compared with a
trigram model on held-out files. Writes history.csv, learning_curves.png and model.keras.
"""

from __future__ import annotations

import math
import platform
import sysconfig
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import common
import trigram

ALPHABET = "\n" + "".join(map(chr, range(32, 127))) + "\N{REPLACEMENT CHARACTER}"
CONTEXT = 128
TEXT_BYTES = 2_000_000
HELD_OUT_EVERY = 10


def load_text() -> tuple[np.ndarray, np.ndarray]:
    """The texts to train with and to validate with, as numbers of characters in `ALPHABET`.

    They are the library's first modules in the order of their names, 2 MB of them; every tenth
    file is held out. Characters outside the alphabet become its last one.
    """
    directory = Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    size = 0
    for path in sorted(directory.glob("*.py")):
        size += path.stat().st_size
        if size > TEXT_BYTES:
            break
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
    if len(texts) < HELD_OUT_EVERY:
        raise SystemExit(f"Python's standard library is not there as source text: {directory}")
    held_out = texts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    del texts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return encode("".join(texts)), encode("".join(held_out))


def encode(text: str) -> np.ndarray:
    """The numbers of the characters of `text`."""
    numbers = {character: number for number, character in enumerate(ALPHABET)}
    other = len(ALPHABET) - 1
    return np.array([numbers.get(character, other) for character in text], "int32")


def training_samples(text: np.ndarray, seed: int) -> tf.data.Dataset:
    """Endless random pieces of `text`; the target is the piece one character further on.

    They depend on the seed alone, so that every strategy sees the same ones.
    """
    text = tf.constant(text)
    positions = len(text) - CONTEXT

    def sample(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        start = tf.random.stateless_uniform([], [seed, index], maxval=positions, dtype=tf.int32)
        piece = text[start : start + CONTEXT + 1]
        return piece[:-1], piece[1:]

    return tf.data.Dataset.counter().map(sample)


def validation_pieces(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Consecutive pieces of `text` and their targets; the rest of the last piece is left out."""
    pieces = (len(text) - 1) // CONTEXT
    length = pieces * CONTEXT
    return text[:length].reshape(pieces, CONTEXT), text[1 : length + 1].reshape(pieces, CONTEXT)


def embed(numbers: keras.KerasTensor, count: int, width: int) -> keras.KerasTensor:
    """An embedding as a matrix product, whose gradient is dense.

    `keras.layers.Embedding` has sparse gradients, in which a row may occur several times; Keras'
    Adam squares the parts, not their sum. Its steps are then too large, and not the same for one
    large batch as for accumulated small ones.
    """
    return keras.layers.Dense(width, use_bias=False)(keras.ops.one_hot(numbers, count))


def build_model(updates: int, width: int = 128, blocks: int = 2, heads: int = 4) -> keras.Model:
    """A compiled Transformer that maps the numbers of CONTEXT characters to logits of the next.

    Args:
        updates: number of updates over which the learning rate falls to zero.
        width: size of the vector for a character.
        blocks: number of Transformer blocks.
        heads: number of attention heads in a block.
    """
    layers = keras.layers
    tokens = keras.Input((CONTEXT,), dtype="int32")
    positions = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    x = embed(tokens, len(ALPHABET), width) + embed(positions, CONTEXT, width)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        # A bias of the keys would cancel in the softmax: its gradient is rounding error.
        attention = layers.MultiHeadAttention(heads, width // heads, use_bias=False)
        x = x + attention(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = x + layers.Dense(width)(y)
    logits = layers.Dense(len(ALPHABET))(layers.LayerNormalization()(x))
    model = keras.Model(tokens, logits)

    warmup = min(50, math.ceil(updates / 10))
    learning_rate = keras.optimizers.schedules.CosineDecay(
        0.0, max(1, updates - warmup), warmup_target=3e-3, warmup_steps=warmup
    )
    # Adam divides a gradient by its size plus epsilon: Keras' default of 1e-7 would blow rounding
    # errors in the gradients of rare characters up to the size of a real step.
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate, epsilon=1e-5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def generate(model: keras.Model, prompt: str, length: int, seed: int) -> str:
    """Continues `prompt` by `length` characters drawn from the model's predictions."""
    predict = tf.function(lambda tokens: model(tokens, training=False))
    random = np.random.default_rng(seed)
    text = list(encode(prompt))
    for _ in range(length):
        visible = text[-CONTEXT:]
        # What is behind the last character is never looked at: attention is causal.
        tokens = np.pad(visible, (0, CONTEXT - len(visible)))[None]
        logits = predict(tf.constant(tokens, tf.int32))[0, len(visible) - 1]
        probabilities = tf.nn.softmax(logits / 0.7).numpy().astype("float64")
        text.append(random.choice(len(ALPHABET), p=probabilities / probabilities.sum()))
    return "".join(ALPHABET[number] for number in text)


def main() -> None:
    """Trains, reports and writes the results."""
    parser = common.make_parser(__doc__, epochs=6, global_batch_size=32, out="out/char_lm")
    parser.add_argument(
        "--steps-per-epoch", type=common.positive_int, default=200, help="batches per epoch"
    )
    args = common.parse(parser)
    strategy = common.make_strategy(parser, args)
    keras.utils.set_random_seed(args.seed)
    train, held_out = load_text()
    inputs, targets = validation_pieces(held_out)

    def samples() -> tf.data.Dataset:
        return training_samples(train, args.seed)

    updates = math.ceil(args.epochs * args.steps_per_epoch / args.accumulation_steps)
    with strategy.scope():
        model = build_model(updates)
    throughput = common.Throughput()
    history = model.fit(
        samples().batch(args.global_batch_size, drop_remainder=True),
        validation_data=(inputs, targets),
        validation_batch_size=64,
        epochs=args.epochs,
        steps_per_epoch=args.steps_per_epoch,
        shuffle=False,
        callbacks=common.make_callbacks(strategy, args.out, throughput),
    )
    bits = common.to_bits(history.history["val_loss"][-1])
    baseline = trigram.bits_per_character(train, held_out[: targets.size + 1], len(ALPHABET))

    model.save(args.out / "model.keras")
    # All processes take part in training, also in that of the comparison; one reports.
    compared = common.compare(build_model, samples, strategy, args) if args.compare else None
    if not common.is_chief(strategy):
        return
    common.plot_learning_curves(
        history,
        [
            common.Panel(
                "loss",
                "cross-entropy (bits per character)",
                scale=common.to_bits(1.0),
                baseline=(baseline, "trigram model, held-out files"),
            ),
            common.Panel("accuracy", "next character right (%)", scale=100),
        ],
        f"Character model, {args.global_batch_size * args.accumulation_steps} samples per update",
        args.out / "learning_curves.png",
    )
    print("sample:", generate(model, "def ", 300, args.seed), sep="\n")
    print("-" * 80)
    print(f"text: Python {platform.python_version()}, {len(train)} characters to train with")
    print(common.describe(strategy))
    print(throughput.report(args.epochs * args.steps_per_epoch * args.global_batch_size))
    print(f"held-out loss: {bits:.3f} bits per character on {targets.size} characters")
    print(f"trigram model: {baseline:.3f} bits per character on the same characters")
    print(f"results: {args.out.resolve()}")
    if compared:
        print(compared)


if __name__ == "__main__":
    main()
