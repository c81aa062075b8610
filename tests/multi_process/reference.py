"""What one device does: a linear model, trained by SGD with momentum, in NumPy's float64."""

import numpy as np

ROWS, BATCH, RATE, MOMENTUM = 67, 16, 0.05, 0.9
_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(ROWS, 4)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5], [3.0]] + 0.5 + _RANDOM.normal(size=(ROWS, 1))).astype("float32")
KERNEL, BIAS = np.array([[0.1], [0.2], [-0.3], [0.4]], "float32"), np.array([0.5], "float32")


def in_batches(rows=ROWS, size=BATCH):
    """The row numbers of batches in order; `rows` are row numbers or their number."""
    rows = np.arange(rows) if isinstance(rows, int) else np.asarray(rows)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


BATCHES = in_batches()


class OneDevice:
    """Trains and evaluates.

    Args:
        accumulation_steps: batches per update.
    """

    def __init__(self, accumulation_steps=1):
        self.weights = [KERNEL.astype("float64"), BIAS.astype("float64")]
        self.velocity = [np.zeros_like(w) for w in self.weights]
        self.iterations = 0
        self.rate = RATE
        self.logs = []
        self._steps = accumulation_steps
        self._pending = []

    def errors(self, rows):
        return X[rows] @ self.weights[0] + self.weights[1] - Y[rows]

    def evaluate(self, rows):
        """The loss and the mean absolute error."""
        errors = self.errors(rows)
        return {"loss": float(np.mean(errors**2)), "mae": float(np.mean(abs(errors)))}

    def batch(self, rows):
        """Trains one batch; returns the metrics of the batch."""
        logs, errors = self.evaluate(rows), self.errors(rows)
        gradients = [2 * X[rows].T @ errors / len(rows), 2 * errors.mean(axis=0)]
        self._pending.append(gradients)
        if len(self._pending) == self._steps:
            means = [np.mean(parts, axis=0) for parts in zip(*self._pending)]
            self._pending = []
            self.iterations += 1
            for i, gradient in enumerate(means):
                self.velocity[i] = MOMENTUM * self.velocity[i] - self.rate * gradient
                self.weights[i] = self.weights[i] + self.velocity[i]
        return logs

    def epoch(self, batches=BATCHES, rate=None):
        """Trains batches; notes and returns the metrics after each: means over all rows so far."""
        self.rate = self.rate if rate is None else rate
        rows, sums, running = 0, {"loss": 0.0, "mae": 0.0}, []
        for batch in batches:
            for name, value in self.batch(batch).items():
                sums[name] += value * len(batch)
            rows += len(batch)
            running.append({name: total / rows for name, total in sums.items()})
        self.logs.append(running[-1])
        return running

    def train(self, epochs, batches=BATCHES):
        """Trains epochs of the same batches; returns itself."""
        for _ in range(epochs):
            self.epoch(batches)
        return self

    @property
    def history(self):
        """The metrics at the ends of the epochs, by name."""
        return {name: [logs[name] for logs in self.logs] for name in ("loss", "mae")}
