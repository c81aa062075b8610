"""Local steps among processes, or among the devices of one: what they come to, and what travels."""

import dataclasses
import hashlib
import inspect

import keras
import tensorflow as tf

import tfdist
from tests.local_steps import by_hand, own_steps
from tests.local_steps.by_hand import CASES
from tests.multi_process.scenarios.common import error_of

# What depends on how processes exchange values, or on what they know of each other's parts.
BY_HAND = (
    "momentum",
    "empty parts",
    "unknown length",
    "BatchNormalization",
    "overflow on one replica",
    "outer momentum, everything",
)
_COLLECTIVES = ("Collective", "Horovod", "NcclAllReduce")


def make(here, case, **options):
    name, arguments = case.local
    return here.make(local=getattr(tfdist, name)(**arguments), **case.options, **options)


def copies(strategy, variables):
    """For each variable its value on each local replica."""
    local = strategy.experimental_local_results
    return [[copy.numpy() for copy in local(v.value)] for v in variables]


def bits(strategy, variables):
    """For each local replica, a digest of the bits of the variables."""
    digests = [hashlib.sha256() for _ in strategy.extended.worker_devices]
    for values in copies(strategy, variables):
        for digest, value in zip(digests, values):
            digest.update(value.tobytes())
    return [digest.hexdigest() for digest in digests]


def own_state(model):
    """The optimizer's state on each local replica."""
    strategy = model.distribute_strategy
    owned = model.optimizer.local_state.owned
    local = strategy.experimental_local_results
    parts = [local(variable) for variable in owned]
    return [[part[i].numpy() for part in parts] for i in range(len(parts[0]))]


def by_hands(here, names=BY_HAND):
    """The weights that `fit` comes to, by case, and the operations in which replicas meet."""
    found = {}
    for name in names:
        case = CASES[name]
        strategy = make(here, case)
        model, history = by_hand.fit(case, strategy)
        found[name] = {
            "weights": copies(strategy, model.weights),
            "own": own_state(model),
            "history": history.history,
            **_collectives(case, model),
        }
    return found


def _collectives(case, model):
    """The operations in which processes meet: in conditions of a train step, and outside.

    Besides, those outside of conditions in all that `fit` has run, which also reads the data.
    """
    strategy = model.distribute_strategy
    data = tf.data.Dataset.from_tensor_slices(case.data()).batch(case.batch)
    spec = strategy.experimental_distribute_dataset(data).element_spec
    step = tf.function(lambda *batch: strategy.run(model.train_step, args=(batch,)))
    found = _collectives_of(step.get_concrete_function(*spec))
    run = inspect.getclosurevars(model.train_function).nonlocals["multi_step_on_iterator"]
    traces = [_collectives_of(trace)["outside"] for trace in run._list_all_concrete_functions()]
    assert traces
    return {**found, "in fit": sorted({op for operations in traces for op in operations})}


def _collectives_of(function):
    """The operations in which processes meet, by whether they are in a condition."""
    graph = function.graph.as_graph_def()
    library = {f.signature.name: f for f in graph.library.function}
    nodes, seen = [(node, "outside") for node in graph.node], set()
    found = {"outside": set(), "inside": set()}
    while nodes:
        node, place = nodes.pop()
        if node.op.startswith(_COLLECTIVES):
            found[place].add(node.op)
        within = "inside" if "If" in node.op or "Case" in node.op else place
        for value in node.attr.values():
            for called in [value.func, *value.list.func]:
                if called.name in library and (called.name, within) not in seen:
                    seen.add((called.name, within))
                    nodes += [(n, within) for n in library[called.name].node_def]
    return {place: sorted(operations) for place, operations in found.items()}


# Without `use_ema`, which at the end of `fit` puts the averages in the place of the weights.
_SMALL = dataclasses.replace(CASES["outer momentum, everything"], optimizer=by_hand.of("Adam"))


def resumed(here, case=_SMALL):
    """What an interrupted training comes to, by how it was saved, and one that was not."""

    def go_on(model):
        by_hand.fit_on(case, model, initial_epoch=2, epochs=4)
        return {"weights": bits(model.distribute_strategy, model.weights), "own": own_state(model)}

    strategy = make(here, case)
    whole, _ = by_hand.fit(case, strategy, epochs=2)
    found = {"whole": go_on(whole)}
    backup = keras.callbacks.BackupAndRestore(here.folder / "backup", delete_checkpoint=False)
    file = str(here.folder / "checkpoint.keras")
    first, _ = by_hand.fit(
        case, strategy, epochs=2, callbacks=[backup, keras.callbacks.ModelCheckpoint(file)]
    )
    first.save(here.folder / "model.keras")
    here.meet()
    with strategy.scope():
        found["saved"] = go_on(keras.models.load_model(here.folder / "model.keras"))
        found["checkpoint"] = go_on(keras.models.load_model(file))
    model, _ = by_hand.fit(case, strategy, epochs=1)  # of which nothing may be left
    by_hand.fit_on(case, model, epochs=4, callbacks=[backup])
    found["backed up"] = {"weights": bits(strategy, model.weights), "own": own_state(model)}
    return found


class _Looks(keras.callbacks.Callback):
    """Looks at the model wherever a callback can, and saves and evaluates in mid-round."""

    decides_in_batches = False

    def __init__(self, here, data):
        super().__init__()
        self._here, self._data = here, data
        self.bits, self.losses = {}, []

    def _note(self, name):
        model = self.model
        self.bits.setdefault(name, []).append(bits(model.distribute_strategy, model.weights))

    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:
            self.losses.append(self.model.evaluate(*self._data, verbose=0)[0])
            self._note("evaluated")
        if batch == 6:
            self.model.save_weights(self._here.folder / "mid.weights.h5")
            self._note("saved")

    def on_epoch_end(self, epoch, logs=None):
        self._note("epoch end")
        self.losses.append(logs.get("val_loss"))

    def on_train_end(self, logs=None):
        self._note("train end")


def looked_at(here):
    """The replicas' weights wherever a user can look at them."""
    case = CASES["BatchNormalization"]
    strategy, data = make(here, case), case.data()
    looks = _Looks(here, data)
    stops = keras.callbacks.EarlyStopping("loss", patience=0, restore_best_weights=True, mode="max")
    arguments = {"batch_size": 8, "epochs": 3, "validation_data": data, "verbose": 0}
    with strategy.scope():
        model = case.model()
        model.compile(case.optimizer(), by_hand.loss(), metrics=["accuracy"])
    history = model.fit(*data, **arguments, callbacks=[stops, looks], shuffle=False)
    # Without validation, which ends a round too.
    model.fit(*data, batch_size=8, epochs=2, callbacks=[looks], shuffle=False, verbose=0)
    looks._note("after fit")
    return {
        "bits": looks.bits,
        "losses": looks.losses,
        "epochs": len(history.history["loss"]),
        "replicas": [w.tolist() for w in model.get_weights()],
        "error": error_of(lambda: model.train_on_batch(data[0][:8], data[1][:8])),
    }


def loop(here):
    """A loop of the user's own: its weights, and the sums of the losses that it reports."""
    case = CASES["momentum"]
    strategy = make(here, case)
    with strategy.scope():
        model = case.model()
        optimizer = tfdist.DistributedOptimizer(case.optimizer())
        optimizer.build(model.trainable_variables)
        loss = by_hand.loss()

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(value, variables), variables)
        return value

    @tf.function
    def train_step(x, y):
        losses = strategy.run(tfdist.local_step(step), args=(x, y))
        return strategy.experimental_local_results(losses)

    @tf.function
    def unmarked(x, y):
        strategy.run(step, args=(x, y))

    data = tf.data.Dataset.from_tensor_slices(case.data()).batch(case.batch)
    reported = []
    for _ in range(case.epochs):
        for x, y in strategy.experimental_distribute_dataset(data):
            reported.append([float(value) for value in train_step(x, y)])
        optimizer.finish_round()
    (x, y), *_ = strategy.experimental_distribute_dataset(data)
    return {
        "weights": copies(strategy, model.weights),
        "reported": reported,
        "unmarked": error_of(lambda: unmarked(x, y)),
    }


def after(here):
    """Synchronous updates first: equal to a synchronous strategy, then to rounds by hand."""
    case = CASES["momentum"]
    found = {}
    for name, local in (
        ("synchronous", None),
        ("one step", tfdist.LocalSGD(steps=1)),
        ("after", tfdist.LocalSGD(steps=3, after=7)),
        ("long after", tfdist.LocalSGD(steps=3, after=1000)),
    ):
        for kept in (None, "int8"):
            compression = kept and tfdist.compression.Int8(min_bytes=0)
            strategy = here.make(local=local, compression=compression)
            model, _ = by_hand.fit(case, strategy)
            found[name, kept] = copies(strategy, model.weights)
    return found


def compressed(here):
    """Differences that are coded: the weights, equal everywhere, and the loss."""
    case = CASES["outer momentum"]
    found = {}
    for name, choice in (("int8", case.local), ("powersgd", ("LocalSGD", {"steps": 3}))):
        strategy = here.make(
            local=getattr(tfdist, choice[0])(**choice[1]),
            compression=tfdist.compression.get({"name": name, "min_bytes": 0}),
        )
        model, history = by_hand.fit(case, strategy, epochs=6)
        found[name] = (bits(strategy, model.weights), history.history["loss"])
    return found


# One round.
DRIFTING = dataclasses.replace(CASES["sgd"], epochs=1, local=("LocalSGD", {"steps": 100}))


def drift(here):
    """The drift in the logs, and the number of replicas."""
    strategy = make(here, DRIFTING)
    _, history = by_hand.fit(DRIFTING, strategy, callbacks=strategy.callbacks())
    return {"drift": history.history["drift"], "replicas": strategy.num_replicas_in_sync}


def all_that_steps_set(here):
    """The weights of models whose steps set more than weights."""
    found = {}
    for name, case in (("mean", own_steps.MEAN), ("outer", own_steps.OUTER)):
        strategy = make(here, case)
        model, _ = by_hand.fit(case, strategy)
        found[name] = copies(strategy, model.weights)
    return found


def after_loading(here):
    """A training that is saved in its rounds, and goes on with a larger `after`."""
    model, _ = by_hand.fit(own_steps.UNEVEN, here.make(local=tfdist.LocalSGD(3, after=2)), epochs=3)
    model.save(here.folder / "model.keras")
    here.meet()
    strategy = here.make(local=tfdist.LocalSGD(3, after=14))
    with strategy.scope():
        model = keras.models.load_model(here.folder / "model.keras")
    (iterations,) = copies(strategy, [model.optimizer.iterations])
    by_hand.fit_on(own_steps.UNEVEN, model, initial_epoch=3, epochs=5)
    return {"iterations": iterations, "weights": copies(strategy, model.weights)}


def interrupted(here):
    """Weights after an interruption in a round, and `compile`; then after training."""
    case = dataclasses.replace(CASES["adam"], local=("LocalSGD", {"steps": 100}))
    strategy = make(here, case)
    found = {}
    with strategy.scope():
        model = case.model()
        model.compile(case.optimizer(), by_hand.loss(), metrics=["accuracy"])
    own_steps.interrupted(case, model, 2)
    found["apart"] = copies(strategy, model.weights)
    with strategy.scope():
        model.compile(case.optimizer(), by_hand.loss(), metrics=["accuracy"])
    found["compiled"] = copies(strategy, model.weights)
    by_hand.fit_on(case, model, epochs=1)
    found["trained"] = copies(strategy, model.weights)
    first, second = own_steps.two_models(strategy)
    own_steps.interrupted(case, first, 2)
    second.predict(case.data()[0], verbose=0)
    found["shared"] = copies(strategy, first.weights)
    return found


def different_steps(here):
    """The error where the ranks have made different numbers of steps, and what they have then."""
    case = CASES["momentum"]
    strategy = here.make(local=tfdist.LocalSGD(100))
    with strategy.scope():
        model = case.model()
        optimizer = tfdist.DistributedOptimizer(case.optimizer())
        optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            value = by_hand.loss()(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(value, variables), variables)

    @tf.function
    def train_step(x, y):
        strategy.run(tfdist.local_step(step), args=(x, y))

    data = tf.data.Dataset.from_tensor_slices(case.data()).batch(case.batch)
    x, y = next(iter(strategy.experimental_distribute_dataset(data)))
    for _ in range(1 + here.rank):
        train_step(x, y)
    found = {"finish": error_of(optimizer.finish_round)}
    x, y = case.data()
    found["predict"] = error_of(lambda: model.predict(x, verbose=0))
    return found


class _NotesBatches(keras.callbacks.Callback):
    """Looks into batches, so the ranks agree after each."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(float(logs["own"]))


class ReportsMetrics(own_steps.Reports):
    """Metrics, and a number that is none."""

    def train_step(self, data):
        x, y, *_ = data
        own = super().train_step(data)
        results = self.compute_metrics(x, y, self(x))
        return {"accuracy": results["accuracy"], **own}


def logs(here):
    """What the ranks' logs say, and how long they train by these."""
    found = {}
    for rows in (65, 67):
        case = dataclasses.replace(CASES["sgd"], rows=rows)
        strategy = make(here, case)
        with strategy.scope():
            model = own_steps.Reports([keras.Input((by_hand.FEATURES,)), *case.model().layers])
            model.compile(case.optimizer(), by_hand.loss())
        file = here.folder / f"best-{rows}.weights.h5"
        best = keras.callbacks.ModelCheckpoint(
            file, monitor="own", mode="min", save_best_only=True, save_weights_only=True
        )
        stops = keras.callbacks.EarlyStopping("own", mode="min", patience=0, min_delta=0.02)
        history = by_hand.fit_on(case, model, epochs=4, callbacks=[best, stops])
        found[rows] = {"history": history.history, "best": float(best.best)}
        looks = _NotesBatches()
        by_hand.fit_on(case, model, epochs=1, callbacks=[looks])
        found[rows]["batches"] = looks.found
    found["validated"] = [_logs_of_an_epoch(here, validates) for validates in (False, True)]
    return found


def _logs_of_an_epoch(here, validates):
    """The history of an epoch, without what validation adds."""
    case = CASES["sgd"]
    with make(here, case).scope():
        model = ReportsMetrics([keras.Input((by_hand.FEATURES,)), *case.model().layers])
        model.compile(case.optimizer(), by_hand.loss(), metrics=["accuracy"])
    x, y = case.data()
    options = {"validation_data": (x[:16], y[:16])} if validates else {}
    history = by_hand.fit_on(case, model, epochs=1, **options).history
    return {name: values for name, values in history.items() if not name.startswith("val_")}
