"""A script runs up to its first `fit`, whatever it gives to it; the model's step is measured."""

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist.plan import candidates, device, models, scripts
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import Machines

BEGINNING = """\
import sys
import keras, numpy as np, tensorflow as tf

model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2)])
model.compile(keras.optimizers.Adam(), "mse")
x, y = np.zeros((40, 3)), np.zeros((40, 2))


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return x[:10], y[:10]


def endless():
    while True:
        yield x[:7], y[:7]


"""
_DATA = "tf.data.Dataset.from_tensor_slices((x, y)).batch(8)"
AFTER = "\nraise RuntimeError('this must not run')\n"


def first_fit(tmp_path, text, *arguments):
    path = tmp_path / "train.py"
    path.write_text(BEGINNING + text + AFTER)
    return scripts.first_fit(str(path), arguments)


@pytest.mark.parametrize(
    ("call", "batch"),
    [
        ("model.fit(x, y)", 32),
        ("model.fit(x, y, batch_size=8, epochs=3, verbose=0)", 8),
        ("model.fit(x, y, 8, 3)", 8),
        ("model.fit(x, y, batch_size=int(sys.argv[1]))", 5),
        ("model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(16))", 16),
        ("model.fit(Batches())", 10),
        ("model.fit(endless(), steps_per_epoch=2)", 7),
        ("try:\n    model.fit(x, y)\nexcept Exception:\n    pass", 32),
        ("try:\n    model.fit(x, y)\nfinally:\n    sys.exit(0)", 32),
        ("try:\n    model.fit(x, y)\nfinally:\n    raise KeyError('k')", 32),
        ("try:\n    model.fit(x, y, batch_size=6)\nexcept:\n    model.fit(x, y)", 6),
    ],
)
def test_the_first_batch_is_taken(tmp_path, call, batch):
    model, inputs, _ = first_fit(tmp_path, call, "5")
    assert inputs.shape == (batch, 3)
    assert model.built and model.optimizer.iterations == 0


@pytest.mark.parametrize(
    ("call", "samples"),
    [
        ("model.fit(x, y)", 40),
        ("model.fit(x, y, validation_split=0.25)", 30),
        ("model.fit(x, y, validation_split=0.25, validation_data=(x, y))", 40),
        ("model.fit(x, y, batch_size=8, steps_per_epoch=2)", 16),
        ("model.fit(x, y, 8, 1, 0, None, 0.0, None, True, None, None, 0, 3)", 24),
        (f"model.fit({_DATA})", 40),
        ("model.fit(Batches())", 40),
        ("model.fit(endless(), steps_per_epoch=3)", 21),
        ("model.fit(endless())", None),
        (f"model.fit({_DATA}.repeat())", None),
        (f"model.fit({_DATA}.filter(lambda *_: True))", None),
    ],
)
def test_the_samples_of_an_epoch_are_known_where_fit_knows_them(tmp_path, call, samples):
    *_, found = first_fit(tmp_path, call)
    assert (found and found.number) == samples


def test_fit_and_updates_are_keras_own_afterwards(tmp_path):
    classes = keras.Model, keras.optimizers.Optimizer, tfdist.DistributedOptimizer
    before = keras.Model.fit, [dict(vars(one)) for one in classes]
    first_fit(tmp_path, "model.fit(x, y)")
    assert (keras.Model.fit, [dict(vars(one)) for one in classes]) == before


OWN_LOOP = """
import tfdist
optimizer = {}
model(x)
optimizer.build(model.trainable_variables)

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) - y)
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

step()
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.exit(3)", "ended with the status 3 before it called `fit`"),
        ("model.fit(3)", "Received: x=3"),
        ("raise KeyError('k')", r"failed before it called `fit`: KeyError: 'k' \(line 22\)"),
        ("model.fit(x, y, batch_size=0)", "Received: batch_size=0"),
        ("model.fit(x[:0], y[:0])", "The data have no batch"),
        ("model.fit(tf.data.Dataset.from_tensors((x, y)).take(0))", "The data have no batch"),
        ("model.fit(tf.data.Dataset.from_tensor_slices(x[:, 0]))", "must give batches of samples"),
        ("model.fit([[1.0, 2.0]], y)", "must give batches of samples"),
        ("model.fit([tf.sparse.from_dense(x)])", "knows dense inputs only"),
        ("try:\n    model.fit(3)\nfinally:\n    sys.exit(0)", "Received: x=3"),
        (
            "try:\n    model.train_on_batch(x, y)\nexcept Exception:\n    model.fit(x, y)",
            "trains with `train_on_batch` and had not called `fit` of a Keras model.* Received: '/",
        ),
        (OWN_LOOP.format("keras.optimizers.SGD()"), "trains with a loop of its own, .* `fit` of a"),
        (
            OWN_LOOP.format("tfdist.DistributedOptimizer(keras.optimizers.SGD())"),
            "trains with a loop of its own",
        ),
    ],
)
def test_scripts_without_a_fit_are_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        first_fit(tmp_path, text)


def test_a_script_that_ends_without_a_fit_says_what_was_looked_for(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import tensorflow as tf\ntf.Variable(1.0).assign_sub(0.5)\n")
    with pytest.raises(
        ValueError, match="trained nothing with a Keras optimizer, and had not called"
    ):
        scripts.first_fit(str(path))


WARM_UP = """
import tfdist
optimizer = {}
model(x)

{}
def make_variables():
    weights = model.trainable_variables
    optimizer.apply_gradients([(tf.zeros_like(weight), weight) for weight in weights])

make_variables()
model.compile(optimizer, "mse")
model.fit(x, y)
"""


@pytest.mark.parametrize(
    ("optimizer", "decorator"),
    [
        ("keras.optimizers.Adam()", ""),
        ("tfdist.DistributedOptimizer(keras.optimizers.Adam())", ""),
        pytest.param("keras.optimizers.Adam()", "@tf.function", marks=pytest.mark.full),
    ],
)
def test_an_optimizer_may_make_its_variables_by_gradients_of_zero(tmp_path, optimizer, decorator):
    found = first_fit(tmp_path, WARM_UP.format(optimizer, decorator))
    assert found.samples.number == 40


def read(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(BEGINNING + text)
    return models.read(str(path), (), None, step=0.1)


@pytest.mark.parametrize(
    ("text", "note", "refused"),
    [
        (
            "model.compile(keras.optimizers.Lamb())",
            'Left out: sharding="parameters", as `fit` refuses Lamb',
            {'sharding="parameters"'},
        ),
        (
            "model.compile('sgd', jit_compile=True)",
            "Left out: local, as the model is compiled with jit_compile=True",
            {"local", "parameter_server", 'sharding="parameters"'},
        ),
        (
            "model.add(keras.layers.BatchNormalization(synchronized=True))",
            "Left out: local, as BatchNormalization is synchronized",
            {"local", "staleness"},
        ),
        (
            "model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2))",
            "pass `accumulation_steps=2` to it",
            set(),
        ),
        ("model.optimizer = None", "SGD with momentum is assumed", set()),
    ],
)
def test_what_refuses_the_model_is_left_out(tmp_path, text, note, refused):
    found = read(tmp_path, f"{text}\nmodel.fit(x, y)")
    assert set(found.refused) == refused
    assert any(note in line for line in found.notes)
    every = candidates.candidates(2, Machines(Link(1.0, 1.0), per_host=2))
    left = [c for c in every if not refused.intersection(c.kinds)]
    assert (len(left) < len(every)) == bool(refused)


ACCUMULATES = """
import tfdist
with tfdist.MirroredStrategy(accumulation_steps=4).scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam()
    model.compile({optimizer}, "mse")
model.fit(x, y)
"""


@pytest.mark.parametrize(
    ("optimizer", "steps"),
    [
        ("optimizer", 4),
        ("tfdist.DistributedOptimizer(optimizer)", 4),
        ("tfdist.DistributedOptimizer(optimizer, accumulation_steps=3)", 3),
    ],
)
def test_what_the_script_accumulates_counts(tmp_path, optimizer, steps):
    found = read(tmp_path, ACCUMULATES.format(optimizer=optimizer))
    assert found.workload.accumulation_steps == steps
    assert any(f"has accumulation_steps={steps}, so an update" in note for note in found.notes)
    found = read(tmp_path, "model.fit(x, y)")
    assert found.workload.accumulation_steps == 1
    assert not any("accumulation_steps" in note for note in found.notes)


SOME_ROWS = """
class SomeRows(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(10, 2)
        self.table.build()

    def call(self, x):
        rows = self.table(tf.boolean_mask(tf.cast(x, "int32"), x > 0))
        return tf.reduce_sum(rows, axis=0) + tf.zeros([x.shape[0], 2])

    def compute_output_spec(self, x):
        return keras.KerasTensor((x.shape[0], 2))

model = keras.Sequential([SomeRows()])
model.compile("adam", "mse")
model.fit(x, y)
"""


def test_what_depends_on_the_data_is_told(tmp_path):
    found = read(tmp_path, SOME_ROWS)
    (table,) = found.workload.variables
    assert table.rows == 0
    notes = "\n".join(found.notes)
    assert f"How many rows of {table.path} a batch looks up depends on the data" in notes
    assert "tensors of a step have sizes that depend on the data" in notes
    assert "depend on the data" not in "\n".join(read(tmp_path, "model.fit(x, y)").notes)


OWN_SCHEDULE = """
class Own(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1

    def get_config(self):
        return {}

model.compile(keras.optimizers.Adam(Own()), "mse")
model.fit(x, y)
"""


def test_a_schedule_that_keras_does_not_know_does_not_matter(tmp_path):
    found = read(tmp_path, OWN_SCHEDULE)
    assert found.workload.slot_bytes == 2 * found.workload.trained_bytes


def test_an_optimizer_that_cannot_be_copied_is_refused(tmp_path):
    text = OWN_SCHEDULE.replace("return {}", "raise NotImplementedError('none')")
    with pytest.raises(ValueError, match="needs a copy of the optimizer.*Adam, which raises NotI"):
        read(tmp_path, text)


SUBCLASSED = """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        raise NotImplementedError("no config")


import tfdist
with tfdist.MirroredStrategy().scope():
    model = Own()
    model(x[:1])
    model.compile("sgd", "mse")
model.fit(x, y)
"""


def test_a_model_that_cannot_be_copied_is_traced_but_not_measured(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(BEGINNING + SUBCLASSED)
    found = models.read(str(path), (), None, step=0.1)
    assert found.workload.trained_bytes == 4 * (3 * 2 + 2)
    with pytest.raises(ValueError, match="no config. Give --device-step"):
        models.read(str(path), (), None, step=None)


def test_a_batch_of_another_size_repeats_samples(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(BEGINNING + "model.fit(x, y)")
    found = models.read(str(path), (), 100, step=0.1)
    assert (found.device.batch, found.workload.batch) == (100, 100)


def test_a_step_is_measured_with_the_batch_and_with_half_of_it():
    model = keras.Sequential([keras.Input((256,)), *(keras.layers.Dense(512) for _ in range(3))])
    before = [tf.identity(variable.value) for variable in model.variables]
    optimizer = keras.optimizers.SGD(0.1)
    found, notes = device.measured(model, tf.random.normal((256, 256)), 256, optimizer)
    assert not notes
    assert 0 <= found.fixed <= found.step < 10
    assert found.seconds(256) == found.step
    assert not optimizer.built
    moved = [tf.reduce_any(a != b.value) for a, b in zip(before, model.variables)]
    assert all(moved)
