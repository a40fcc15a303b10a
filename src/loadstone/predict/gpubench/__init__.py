"""Microbenchmarks of one GPU: what its memory, its products, its attention kernels and its launches take.

`loadstone calibrate --gpu` runs them; without the command line, `python -m loadstone.predict.gpubench OUT`. Only
torch is needed beside the package's own small libraries, and it is imported when it is used.
"""
