"""Describes what happened, and under which circumstances: plans, records, run folders. Facts only;
interpretation is the wing `analyse`'s. Times are seconds. A missing value is None, never 0.

Nothing is imported here: the command line starts in a tenth of a second.
"""
