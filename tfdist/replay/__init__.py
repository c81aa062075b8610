"""Records of asynchronous training, and their replay in one process.

`tfdist.ParameterServerStrategy(record="run.log")` writes a record while it trains; the command
`tfdist replay run.log script.py` trains again in the recorded order, one step after the other.
"""
