"""Where batches come from: global ones, and data that the ranks divide themselves."""

import warnings

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests import tuned_data
from tests.log_messages import log_messages
from tests.multi_process.reference import BATCH, BATCHES, MOMENTUM, RATE, ROWS, X, Y
from tests.multi_process.scenarios.common import error_of, fit, floats, linear, restart, state
from tests.multi_process.shards import FIRST, SHARDS
from tfdist.control_groups import free_memory
from tfdist.memory import at_start
from tfdist.step import replica


def _dataset(x=X, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y))


def _of_unknown_length(dataset):
    return dataset.filter(lambda *batch: True)


# Another model, for data of unknown length.
_OTHER = {"steps_per_execution": 1}


class Sequence(keras.utils.PyDataset):
    """Batches of arrays, by their numbers."""

    def __init__(self, x, y, size, **options):
        super().__init__(**options)
        self._x, self._y, self._size = x, y, size

    def __len__(self):
        return -(-len(self._x) // self._size)

    def __getitem__(self, index):
        rows = slice(index * self._size, (index + 1) * self._size)
        return self._x[rows], self._y[rows]


def _generator():
    for rows in BATCHES:
        yield X[rows], Y[rows]


def _from_generator():
    specs = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    return tf.data.Dataset.from_generator(_generator, output_signature=specs)


INPUTS = {
    "arrays": lambda: dict(x=X, y=Y, batch_size=BATCH),
    "tensors": lambda: dict(x=tf.constant(X), y=tf.constant(Y), batch_size=BATCH),
    "data set": lambda: dict(x=_dataset().batch(BATCH)),
    "data set of unknown length": lambda: dict(x=_of_unknown_length(_dataset().batch(BATCH))),
    "data set of a generator": lambda: dict(x=_from_generator()),
    "generator": lambda: dict(x=_generator()),
    "PyDataset": lambda: dict(x=Sequence(X, Y, BATCH)),
    "PyDataset in threads": lambda: dict(x=Sequence(X, Y, BATCH, workers=2)),
    "endless data set": lambda: dict(x=_dataset().batch(BATCH).repeat(), steps_per_epoch=5),
    "endless generator": lambda: dict(x=_without_end(), steps_per_epoch=5),
}


def short_of_memory(here):
    """Training where one rank has too little memory for a batch, and says so."""
    model = here.model()
    if here.rank == 1:
        # Enough for gradients and their sums, of five weights, for both ranks.
        at_start.free_memory = lambda: 100
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = floats(model.fit(X, Y, BATCH, shuffle=False, verbose=0).history)
    finally:
        at_start.free_memory = free_memory
    said = [str(warning.message) for warning in caught]
    return {"history": history, "state": state(model), "said": said}


def _without_end():
    while True:
        yield from _generator()


def global_batches(here):
    """An epoch of the same batches from every kind of input."""
    found = {}
    for name, make in INPUTS.items():
        model = here.model()
        history = floats(model.fit(**make(), shuffle=False, verbose=0).history)
        found[name] = {"history": history, "state": state(model)}
    return found


def untuned(here):
    """`options.autotune.enabled` of all data sets that an epoch reads, by the kind of input."""
    found = {}
    for name, make in INPUTS.items():
        with tuned_data.recorded() as found[name]:
            here.model().fit(**make(), shuffle=False, verbose=0)
    with tuned_data.recorded() as found["own shards"]:
        here.model().fit(_distributed(here, SHARDS["known lengths"]), verbose=0)
    return found


def _with_none():
    for x, y in _generator():
        yield x, (y, None)


WITH_NONE = {
    "arrays": lambda: dict(x=X, y=(Y, None), batch_size=BATCH),
    "generator": lambda: dict(x=_with_none()),
    "data set": lambda: dict(x=_dataset().batch(BATCH).map(lambda x, y: (x, (y, None)))),
}


def targets_that_are_none(here):
    """An epoch of batches without targets for the second output, which has no loss."""
    with here.strategy.scope():
        inputs = keras.Input((4,))
        output = keras.layers.Dense(1)(inputs)
        model = keras.Model(inputs, [output, keras.layers.Activation("relu")(output)])
        optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        model.compile(optimizer, loss=["mse", None])
        model.optimizer.build(model.trainable_variables)
    found = {}
    for name, make in WITH_NONE.items():
        restart(model)
        history = floats(model.fit(**make(), shuffle=False, verbose=0).history)
        found[name] = {"loss": history["loss"], "state": state(model)}
    distribute = here.strategy.distribute_datasets_from_function
    data = WITH_NONE["data set"]()["x"]
    return {**found, "own": error_of(distribute, lambda context: data)}


def steps_across_epochs(here):
    """Data without end go on in the next epoch: three epochs of three steps."""
    model = here.model()
    data = _dataset().batch(BATCH).repeat()
    history = floats(model.fit(data, epochs=3, steps_per_epoch=3, verbose=0).history)
    return {"history": history, "state": state(model)}


def validation(here):
    """Validation data of all kinds, in a training without change."""
    found = {}
    for name, options in {
        "arrays": dict(validation_data=(X, Y), validation_batch_size=BATCH),
        "unknown length": dict(validation_data=_of_unknown_length(_dataset().batch(BATCH))),
        "own shards": dict(validation_data=_distributed(here, SHARDS["known lengths"])),
        "steps": dict(validation_data=_dataset().batch(BATCH).repeat(), validation_steps=2),
    }.items():
        model = here.model()
        found[name] = {"history": fit(model, **options), "state": state(model)}
    return found


def distributed_by_hand(here):
    """Data sets that the strategy has distributed already."""
    found = {}
    for name, data in {
        "known length": _dataset().batch(BATCH),
        "unknown length": _of_unknown_length(_dataset().batch(BATCH)),
    }.items():
        model = here.model()
        distributed = here.strategy.experimental_distribute_dataset(data)
        history = floats(model.fit(distributed, epochs=2, verbose=0).history)
        found[name] = {"history": history, "state": state(model)}
    return found


def _own(here, shards):
    """This rank's data set."""
    rows = shards.rows(here.rank, here.size)
    size = shards.sizes[here.rank]
    data = _dataset(X[rows], Y[rows]).batch(size, drop_remainder=shards.drop_remainder)
    data = data if shards.known else _of_unknown_length(data)
    return data.repeat() if here.rank in shards.endless else data


def _distributed(here, shards):
    contexts = []

    def dataset(context):
        contexts.append(context)
        return _own(here, shards)

    distributed = here.strategy.distribute_datasets_from_function(dataset)
    (context,) = contexts
    assert (context.input_pipeline_id, context.num_input_pipelines) == (here.rank, here.size)
    assert context.get_per_replica_batch_size(2 * here.size * here.devices) == 2
    return distributed


def own_shards(here):
    """Two epochs of data that the ranks divide themselves, in many ways."""
    return _trained_on_own(here, *FIRST)


def more_own_shards(here):
    """The other ways."""
    return _trained_on_own(here, *(name for name in SHARDS if name not in FIRST))


def _trained_on_own(here, *names):
    found = {}
    for name in names:
        shards = SHARDS[name]
        model = here.model(**{} if shards.known else _OTHER)
        options = dict(epochs=2, steps_per_epoch=shards.steps, verbose=0)
        history = floats(model.fit(_distributed(here, shards), **options).history)
        found[name] = {"history": history, "state": state(model)}
    return found


def own_shards_of_one_model(here):
    """Known lengths, then unknown ones, then known ones again."""
    model, found = linear(here.strategy), {}
    for number, name in enumerate(("known lengths", "unknown lengths", "known lengths")):
        restart(model)
        history = floats(model.fit(_distributed(here, SHARDS[name]), epochs=2, verbose=0).history)
        found[str(number)] = {"history": history, "state": state(model)}
    return found


def own_shards_of_known_and_unknown_length(here):
    """Rank 0 does not know how much it has; rank 1 knows that it has nothing."""
    data = _dataset().batch(8)
    data = data.take(0) if here.rank else _of_unknown_length(data)
    model = here.model(**_OTHER)
    distributed = here.strategy.distribute_datasets_from_function(lambda context: data)
    history = floats(model.fit(distributed, epochs=2, verbose=0).history)
    return {"history": history, "state": state(model)}


def sizes_that_divide_evenly_or_not(here):
    """After batches that divide evenly, others of which one rank's part is as large."""
    model, strategy = here.model(), here.strategy
    model.fit(X[:64], Y[:64], 16, shuffle=False, verbose=0)

    @tf.function(autograph=False)
    def count(x):
        return strategy.reduce("SUM", strategy.run(_weighted_count, args=(x,)), axis=None)

    batches = strategy.experimental_distribute_dataset(_dataset(X[:31], X[:31]).batch(16))
    return {
        "predictions": model.predict(X[:31], batch_size=16, verbose=0).tolist(),
        "metrics": model.evaluate(X[:31], Y[:31], batch_size=16, verbose=0),
        "odd": model.evaluate(X[:45], Y[:45], batch_size=15, verbose=0),
        "counts": [float(count(x)) for x, _ in batches],
        "state": state(model),
    }


def _weighted_count(x):
    """The number of samples, as the sum over the replicas of share times number."""
    return replica.current().share.fraction * tf.cast(tf.shape(x)[0], tf.float32)


def runs_of_different_lengths(here):
    """Numbers of steps and epochs that differ by rank, which would make one wait for ever."""
    model, number = here.model(), 4 + here.rank
    return {
        "steps": error_of(fit, model, steps_per_epoch=number - 1),
        "epochs": error_of(fit, model, epochs=number),
        "PyDataset": error_of(model.fit, Sequence(X[: 4 * number], Y[: 4 * number], 4), verbose=0),
        "evaluate": error_of(model.evaluate, X, Y, BATCH, steps=number - 2, verbose=0),
        "state": state(model),
    }


def own_shards_in_evaluate_and_predict(here):
    """What the model at its start gives for data that the ranks divide."""
    found = {}
    for name in ("known lengths", "unknown lengths", "a rank without data"):
        model = here.model(**{} if SHARDS[name].known else _OTHER)
        data = _distributed(here, SHARDS[name])
        metrics = floats(model.evaluate(data, verbose=0, return_dict=True))
        found[name] = {"metrics": metrics, "predictions": model.predict(data, verbose=0).tolist()}
    return found


def own_shards_with_several_steps_per_execution(here):
    """Two epochs of data that the ranks divide, with two steps per call."""
    found = {}
    for name in ("unknown lengths", "known lengths"):
        model = here.model(steps_per_execution=2)
        history = floats(model.fit(_distributed(here, SHARDS[name]), epochs=2, verbose=0).history)
        found[name] = {"history": history, "state": state(model)}
    return found


def refused(here):
    """Data that cannot be the same global batches in all ranks."""
    rank, model = here.rank, here.model()
    length = ROWS - 20 * rank
    plain = _dataset().batch(BATCH)

    def with_policy(name):
        options = tf.data.Options()
        policy = getattr(tf.data.experimental.AutoShardPolicy, name)
        options.experimental_distribute.auto_shard_policy = policy
        return plain.with_options(options)

    data = {
        "data sets": (_dataset(X[:length], Y[:length]).batch(BATCH),),
        "endless in rank 1": (plain.repeat() if rank else plain,),
        "unknown in rank 1": (_of_unknown_length(plain) if rank else plain,),
        "types": (_dataset(X, Y.astype(["float32", "float64"][rank])).batch(BATCH),),
        "OFF": (with_policy("OFF"),),
        "FILE": (with_policy("FILE"),),
    }
    errors = {
        name: error_of(model.fit, *arguments, steps_per_epoch=2, verbose=0)
        for name, arguments in data.items()
    }
    errors["arrays"] = error_of(model.fit, X[:length], Y[:length], BATCH, verbose=0)
    empty = _dataset(X[:0], Y[:0]).batch(BATCH)
    errors["empty"] = error_of(model.fit, empty, verbose=0)
    for name in ("AUTO", "DATA"):
        errors[name] = error_of(model.fit, with_policy(name), verbose=0)
    return {**errors, "state": state(model)}


def different_data(here):
    """What is logged where the ranks read the same data, and where they do not.

    The warning comes once for each strategy.
    """
    model = linear(here.make())
    with log_messages() as messages:
        fit(model)
        found = {"same": list(messages)}
        model.fit(X[::-1] if here.rank else X, Y, BATCH, verbose=0, shuffle=False)
    return {**found, "different": messages, "state": state(model)}


def without_a_seed(here):
    """An epoch of shuffled data when nobody has set a seed.

    Sample i is the i-th unit vector, which pulls weight i alone: away from 0, once per time that
    it is seen.
    """
    tf.random.set_seed(None)
    strategy = here.make()
    x, y = np.eye(20, dtype="float32"), np.ones((20, 1), "float32")
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((20,)), layer])
        model.compile(keras.optimizers.SGD(1.0), "mse")
    found = {}
    for name, arguments in {
        "arrays": dict(x=x, y=y, batch_size=4),
        "data set": dict(x=_dataset(x, y).shuffle(20).batch(4)),
        "PyDataset": dict(x=Sequence(x, y, 4)),
    }.items():
        model.set_weights([np.zeros((20, 1))])
        model.fit(**arguments, shuffle=True, verbose=0)
        found[name] = np.ravel(model.get_weights()[0]).tolist()
    order = []
    data = tf.data.Dataset.range(20).shuffle(20).batch(4)
    for batch in strategy.experimental_distribute_dataset(data):
        order += strategy.gather(batch, axis=0).numpy().tolist()
    found["order"] = order
    return found


def seeds_that_differ(here):
    """A seed in each rank, before the strategy is made."""
    keras.utils.set_random_seed(here.rank)
    error = error_of(here.make)
    keras.utils.set_random_seed(7)
    strategy = here.make()
    seed, _ = tf.compat.v1.random.get_seed(0)
    return {"error": error, "replicas": strategy.num_replicas_in_sync, "seed": int(seed)}


def own_data_in_a_loop(here):
    """The steps and the sums of a loop of one's own over data that the ranks divide."""
    strategy, found = here.strategy, {}
    for name in ("known lengths", "unknown lengths", "a rank without data"):
        sums = []
        for x, _ in _distributed(here, SHARDS[name]):
            total = strategy.run(lambda x: tf.reduce_sum(x, axis=0), args=(x,))
            sums.append(strategy.reduce("SUM", total, axis=None).numpy().tolist())
        found[name] = sums
    assert isinstance(strategy, tfdist.MultiWorkerMirroredStrategy | tfdist.HorovodStrategy)
    return found
