"""Microbenchmarks of one GPU: what its memory, its products, its attention kernels and its launches
take.

`python -m gpubench OUT.json`, with research/gpu and src on the path. Only torch is needed beside
the small libraries of loadstone.core, the one part of the package that this imports.
"""
