"""Scoring the performance model against published measurements."""
