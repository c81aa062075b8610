"""The rows of the equivalence table, by theme."""

from tests.equivalence.features import (
    accumulation,
    batches,
    callbacks,
    inputs,
    layers,
    losses,
    models,
    optimizers,
    precision,
    steps,
)

THEMES = (
    optimizers,
    accumulation,
    batches,
    losses,
    layers,
    precision,
    callbacks,
    inputs,
    models,
    steps,
)
FEATURES = [feature for theme in THEMES for feature in theme.FEATURES]

# Each differs in one point from a feature that the default suite trains; the full suite has them.
VARIATIONS = {
    "SGD",
    "SGD, Nesterov",
    "Nadam",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Adamax",
    "Ftrl",
    "clipvalue",
    "class_weight",
    "L2 regularization",
    "accumulation_steps=2",
    "accumulation_steps=3",
    "batch of 13 samples",
    "last batch of 2 samples",
    "synchronized BatchNormalization, last batch of 1",
    "predict and evaluate, batches of 3",
    "tf.data, static batches",
    "Embedding (IndexedSlices), SGD",
    "gradients that are None",
    "loss reduction 'sum'",
    "loss reduction 'none'",
    "loss reduction 'mean_with_sample_weight'",
    "masked loss (mask_zero)",
    "functional model",
    "own train_step",
    "two optimizers (GAN)",
    "mixed_float16",
    "steps_per_execution=4",
    "AdamW",
    "Lion",
    "SGD, momentum",
    "EMA of the weights",
    "accumulation_steps=4",
    "accumulation, short last batch",
    "accumulation, steps_per_execution=4",
    "accumulation, remainder of an epoch carries over",
    "last batch of 3 samples",
    "batch of 32 samples, also on 3 replicas",
    "synchronized BatchNormalization",
    "masked loss, 'mean_with_sample_weight'",
    "masked loss, sample_weight",
    "mixed_float16, overflow on one replica",
    "LSTM",
    "MultiHeadAttention",
    "own train_step, data without targets",
    "tf.data",
    "BackupAndRestore after an interruption",
    "run_eagerly, accumulation",
    "LearningRateScheduler",
    "ReduceLROnPlateau",
    "loss_scale_factor",
    "two optimizers (GAN): WGAN-GP, two steps of the critic, last batch of 1",
    "diffusion without call, averaged network, last batch of 1",
    "Keras' guide to several devices",
    "ragged inputs",
    "sparse inputs",
    "sparse inputs, indices not in order",
    "ScheduleFreeAdamW, built before fit",
    "clipnorm",
    "MultiOptimizer",
    "Muon",
    "Lamb",
    "tf.data, steps_per_execution=4",
    "learning-rate schedule",
    "two optimizers (GAN) without call, last batch of 1",
}
# What columns train that the default suite does not run completely: something of every theme, and
# what is most likely to differ between one number of replicas and another.
SAMPLE = (
    "Adam",
    "global_clipnorm",
    "EMA, overwriting every 3 updates",
    "accumulation_steps=3, steps_per_execution=4, remainders",
    "last batch of 1 sample",
    "batches of 1 sample",
    "synchronized BatchNormalization, last batch of 3",
    "predict and evaluate, uneven batches",
    "loss reduction 'sum', last batch of 1",
    "Embedding (IndexedSlices), Adam",
    "mixed_float16, overflow on the last replica, short batch",
    "BackupAndRestore in the middle of an accumulation",
    "a callback that reads and sets numbers",
    "tf.data of unknown length",
    "tf.data, shuffled anew each epoch",
    "masked mean by hand, last batch of 3",
    "two optimizers (GAN), last batch of 3",
    "train_on_batch, test_on_batch, predict_on_batch",
    "run_eagerly",
    "validation_data, last batch of 3",
)
# Engines that run the same steps share the sample: what an engine has a part in, all have.
_OF_ENGINES = {
    "synchronized BatchNormalization, last batch of 3",
    "Embedding (IndexedSlices), Adam",
    "mixed_float16, overflow on the last replica, short batch",
    "predict and evaluate, uneven batches",
    "tf.data, shuffled anew each epoch",
    "masked mean by hand, last batch of 3",
}
_FIRST = {
    "global_clipnorm",
    "accumulation_steps=3, steps_per_execution=4, remainders",
    "BackupAndRestore in the middle of an accumulation",
    "a callback that reads and sets numbers",
    "tf.data of unknown length",
    "run_eagerly",
}
FIRST_SAMPLE = tuple(name for name in SAMPLE if name in _OF_ENGINES | _FIRST)
# The same code in one process and in several: the default suite has these in one process.
_SHARED = {
    "EMA, overwriting every 3 updates",
    "batches of 1 sample",
    "loss reduction 'sum', last batch of 1",
    "validation_data, last batch of 3",
}
SECOND_SAMPLE = tuple(name for name in SAMPLE if name not in _FIRST | _SHARED)
# What one more column may get wrong, though others are right that have a part of it.
SMALL_SAMPLE = (
    "last batch of 1 sample",
    "predict and evaluate, uneven batches",
)
assert {*SMALL_SAMPLE, *_OF_ENGINES, *_FIRST, *_SHARED} <= set(SAMPLE)
assert {*SAMPLE, *VARIATIONS} <= {feature.name for feature in FEATURES}
assert not VARIATIONS & set(SAMPLE)
