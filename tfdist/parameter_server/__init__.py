"""Asynchronous training: variables on parameter servers, workers that do not wait.

The rooms: `data` (where batches come from), `worker` (what a worker runs), `chief` (who does what
when, and the updates). `contracts` says what the rooms expect of each other.

Each of these words has one meaning here:

- step: Keras' `train_step`, `test_step` or `predict_step` of a model, on one batch;
- work item: what a worker does between two readings of the weights: one step, or several steps
  whose gradients are added up;
- update: what the chief makes of the gradients of one or more work items;
- run: the time in which workers do the work items of an epoch, until the epoch ends or is
  interrupted;
- pass: one iteration over a data set; an epoch may be only a part of a pass;
- shard: a worker's part of a data set;
- part: a part of a global batch (`BatchPart`), or of a partitioned variable (`VariablePart`).
"""
