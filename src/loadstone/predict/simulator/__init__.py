"""The event simulation: a plan, schedulers and a model of their steps, to records. No I/O, and no
clock is read."""
