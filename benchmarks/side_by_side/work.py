"""What is trained: samples, batch sizes and the sizes of models, the same for all systems.

To measure the time of a step, the samples are few and random. To measure the steps to a loss, they
are the scans of digits in scikit-learn, and the source text of Python's standard library. The
models are in `models_keras.py` and `models_torch.py`.
"""

from __future__ import annotations

import dataclasses
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np

Samples = tuple[np.ndarray, np.ndarray]

MOMENTUM = 0.9
SEED = 1
# The number of different global batches, which training repeats.
BATCHES = 8
# The number of different batches of real samples.
REAL_BATCHES = 200

CONTEXT, WIDTH, BLOCKS, HEADS = 64, 256, 4, 4
CHARACTERS = 128
WORDS = 50_000
TEXT_BYTES = 2_000_000
MLP_UNITS = (3072, 2048, 640)
CNN_WIDTHS, CNN_BLOCKS = (16, 32, 64), 3
EMBEDDED, EMBEDDING_WIDTH, EMBEDDING_UNITS = 100_000, 64, 256
# The same number of parameters, in few and in many variables.
VARIABLES, IN_VARIABLES = (10, 1000), 4_000_000


@dataclasses.dataclass(frozen=True)
class Work:
    """One model's task.

    Attributes:
        title: the title in tables.
        model: the name of the model.
        shape: the shape of one sample.
        classes: the number of classes of the labels.
        tokens: the number of different tokens in samples; 0 for samples of numbers.
        label_shape: the shape of the labels of one sample.
        real: gives so many real samples; None where samples are random.
        target: the loss that training with real samples should reach.
        learning_rate: the learning rate of SGD with momentum.
    """

    title: str
    model: str
    shape: tuple[int, ...]
    classes: int
    tokens: int = 0
    label_shape: tuple[int, ...] = ()
    real: Callable[[int], Samples] | None = None
    target: float | None = None
    learning_rate: float = 0.01

    def samples(self, batch: int) -> Samples:
        """All global batches of so many samples, one after the other."""
        if self.real:
            return self.real(batch * REAL_BATCHES)
        random = np.random.default_rng(SEED)
        count = batch * BATCHES
        labels = random.integers(self.classes, size=(count, *self.label_shape), dtype=np.int32)
        if self.tokens:
            return random.integers(self.tokens, size=(count, *self.shape), dtype=np.int32), labels
        return random.standard_normal((count, *self.shape), dtype=np.float32), labels

    def share(self, batch: int, rank: int, ranks: int) -> Samples:
        """The samples of one rank in each global batch, `batch` samples each."""
        x, y = self.samples(batch * ranks)
        own = np.arange(len(x)) // batch % ranks == rank
        return x[own], y[own]


def digits(count: int) -> Samples:
    """Scans of digits, enlarged to the size of the MLP's random samples."""
    from sklearn.datasets import load_digits

    data = load_digits()
    random = np.random.default_rng(SEED)
    epochs = -(-count // len(data.target))
    order = np.concatenate([random.permutation(len(data.target)) for _ in range(epochs)])[:count]
    images = np.kron(data.images / 16, np.ones((3, 3)))
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).reshape(len(images), -1)
    return images.astype(np.float32)[order], data.target.astype(np.int32)[order]


def characters(count: int) -> Samples:
    """Pieces of source text, and for each character the following character."""
    texts: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        if sum(map(len, texts)) > TEXT_BYTES:
            break
    # The few characters outside of ASCII become the last character of ASCII.
    text = np.array([min(ord(c), CHARACTERS - 1) for c in "".join(texts)], np.int32)
    starts = np.random.default_rng(SEED).integers(len(text) - CONTEXT, size=(count, 1))
    pieces = text[starts + np.arange(CONTEXT + 1)]
    return pieces[:, :-1], pieces[:, 1:]


WORKS = {
    "mlp": Work("MLP", "mlp", (784,), 10),
    "cnn": Work("CNN like ResNet-20", "cnn", (32, 32, 3), 10),
    "transformer": Work(
        "Transformer", "transformer", (CONTEXT,), CHARACTERS, CHARACTERS, (CONTEXT,)
    ),
    # For `sharding.py`.
    "words": Work("Transformer, 50,000 words", "transformer", (CONTEXT,), WORDS, WORDS, (CONTEXT,)),
    "embedding": Work("Embedding", "embedding", (32,), 10, EMBEDDED),
    "digits": Work("MLP, scans of digits", "mlp", (784,), 10, real=digits, target=0.1),
    "characters": Work(
        "Transformer, characters",
        "transformer",
        (CONTEXT,),
        CHARACTERS,
        CHARACTERS,
        (CONTEXT,),
        real=characters,
        target=2.75,
        learning_rate=0.03,
    ),
    **{
        f"variables-{count}": Work(f"{count} variables", f"variables-{count}", (10,), 10)
        for count in VARIABLES
    },
}
