"""What is trained: samples, batch sizes and the sizes of models, the same for all systems.

The samples are random and few, as they are there for the time of a step. The models are in
`models_keras.py` and `models_torch.py`.
"""

from __future__ import annotations

import dataclasses

import numpy as np

LEARNING_RATE, MOMENTUM = 0.01, 0.9
SEED = 1
# Global batches that differ; training repeats them.
BATCHES = 8


@dataclasses.dataclass(frozen=True)
class Work:
    """One model's task.

    Attributes:
        title: for tables.
        batch: samples per rank and step.
        shape: of one sample.
        classes: of the labels.
        tokens: how many different ones a sample consists of; 0 for numbers.
        label_shape: of the labels of one sample.
    """

    title: str
    batch: int
    shape: tuple[int, ...]
    classes: int
    tokens: int = 0
    label_shape: tuple[int, ...] = ()

    def samples(self, ranks: int) -> tuple[np.ndarray, np.ndarray]:
        """All global batches, one after the other."""
        random = np.random.default_rng(SEED)
        count = BATCHES * self.batch * ranks
        labels = random.integers(self.classes, size=(count, *self.label_shape), dtype=np.int32)
        if self.tokens:
            return random.integers(self.tokens, size=(count, *self.shape), dtype=np.int32), labels
        return random.standard_normal((count, *self.shape), dtype=np.float32), labels

    def share(self, rank: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each global batch, the samples of one rank."""
        x, y = self.samples(ranks)
        own = np.arange(len(x)) // self.batch % ranks == rank
        return x[own], y[own]


CONTEXT, WIDTH, BLOCKS, HEADS = 64, 256, 4, 4
CHARACTERS = 97
MLP_UNITS = (3072, 2048, 640)
CNN_WIDTHS, CNN_BLOCKS = (16, 32, 64), 3
EMBEDDED, EMBEDDING_WIDTH, EMBEDDING_UNITS = 100_000, 64, 256

WORKS = {
    "mlp": Work("MLP", 64, (784,), 10),
    "cnn": Work("CNN like ResNet-20", 16, (32, 32, 3), 10),
    "transformer": Work("Transformer", 8, (CONTEXT,), CHARACTERS, CHARACTERS, (CONTEXT,)),
    "embedding": Work("embedding", 256, (32,), 10, EMBEDDED),
}
