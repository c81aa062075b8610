"""Where the launchers of several machines meet; needs no TensorFlow.

`tfdist run --rendezvous HOST:PORT` runs on every machine. The launcher at HOST serves: it waits for
the others, tells each of them which ranks it starts, and ends the job everywhere when it fails on
one machine. `secret` is what all launchers know, `channel` carries messages that only they can
write, `server` is the meeting place, and `machine` is one launcher's side. The ranks themselves
never talk here: they exchange tensors over TensorFlow or Horovod.
"""
