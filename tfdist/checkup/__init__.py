"""`tfdist test`: measures the ranks of a job, their links, and whether they train as one device."""
