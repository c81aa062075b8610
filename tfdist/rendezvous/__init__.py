"""Where the launchers of several machines meet; needs no TensorFlow.

`tfdist run --rendezvous HOST:PORT` runs on every machine. The launcher at HOST serves: it waits for
the others, tells each of them which ranks it starts, and ends the job everywhere when it fails on
one machine. The ranks themselves never talk here: they exchange tensors over TensorFlow or Horovod.

`secret` is what all launchers know, `channel` carries messages that only they can write, `server`
is the meeting place, and `machine` is one launcher's side; `reaching` is what happens before. The
messages, in their order:

| from | message | meaning |
|---|---|---|
| launcher | `terms`, `machine`, `serves` | what it was given, its addresses, whether it serves |
| server | `refused` | why there is no job; the last message |
| server | `first`, `ranks`, `variables` | the ranks that the launcher starts now |
| launcher | an `End` | how its ranks have ended; again if it is interrupted later |
| server | `failed`: an `End` | another machine has failed, so ranks must be ended |
| server | `end`: an `End` | how the job has ended; the last message |
"""
