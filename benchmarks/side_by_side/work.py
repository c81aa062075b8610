"""What is trained: samples, batch sizes and the sizes of models, the same for all systems.

For the time of a step the samples are random and few; for the steps to a loss they are the scans
of digits in scikit-learn. The models are in `models_keras.py` and `models_torch.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

Samples = tuple[np.ndarray, np.ndarray]

LEARNING_RATE, MOMENTUM = 0.01, 0.9
SEED = 1
# Global batches that differ; training repeats them.
BATCHES = 8
# Of real samples, after which they repeat.
REAL_BATCHES = 200


@dataclasses.dataclass(frozen=True)
class Work:
    """One model's task.

    Attributes:
        title: for tables.
        model: the name of its model.
        batch: samples per rank and step, unless the command line says otherwise.
        shape: of one sample.
        classes: of the labels.
        tokens: how many different ones a sample consists of; 0 for numbers.
        label_shape: of the labels of one sample.
        real: gives so many samples that mean something; None for random ones.
        target: the loss that training is to reach with them.
    """

    title: str
    model: str
    batch: int
    shape: tuple[int, ...]
    classes: int
    tokens: int = 0
    label_shape: tuple[int, ...] = ()
    real: Callable[[int], Samples] | None = None
    target: float | None = None

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
        """Of each global batch, the samples of one rank, `batch` of them."""
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


CONTEXT, WIDTH, BLOCKS, HEADS = 64, 256, 4, 4
CHARACTERS = 97
MLP_UNITS = (3072, 2048, 640)
CNN_WIDTHS, CNN_BLOCKS = (16, 32, 64), 3
EMBEDDED, EMBEDDING_WIDTH, EMBEDDING_UNITS = 100_000, 64, 256

WORKS = {
    "mlp": Work("MLP", "mlp", 64, (784,), 10),
    "cnn": Work("CNN like ResNet-20", "cnn", 16, (32, 32, 3), 10),
    "transformer": Work(
        "Transformer", "transformer", 8, (CONTEXT,), CHARACTERS, CHARACTERS, (CONTEXT,)
    ),
    "embedding": Work("embedding", "embedding", 256, (32,), 10, EMBEDDED),
    "digits": Work("MLP, digits", "mlp", 32, (784,), 10, real=digits, target=0.1),
}
