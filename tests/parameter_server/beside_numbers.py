"""What a job with an evaluator trains, for the job and for the test that looks at it."""

RATE, WIDTH, EPOCHS = 2.0**-10, 64, 5
