"""Asynchronous training: variables on parameter servers, workers that do not wait.

The rooms: `data` (where batches come from), `worker` (what a worker runs), `chief` (who does what
when, and the updates). `contracts` says what they expect of each other.

The words, each for one thing:

- step: Keras' `train_step`, `test_step` or `predict_step` of a model, on one batch;
- work item: what a worker does between two readings of the weights: one step, or several whose
  gradients it adds;
- update: what the chief makes of the gradients of one work item, or of several;
- run: the time in which workers do the work items of an epoch, until it ends or is interrupted;
- pass: one iteration over a data set, of which an epoch may have a part only;
- shard: a worker's part of a data set;
- part: a part of a global batch (`BatchPart`), or of a partitioned variable (`VariablePart`).
"""
