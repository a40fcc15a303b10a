"""Judges if a cell's numbers can be believed: findings, each with its evidence and what to do about
it.

No warning and no error means trusted. `findings.toml` has all of a finding but the numbers from
which it is made; `thresholds.py` has these, with their reasons. docs/verdict.md is for readers.
"""
