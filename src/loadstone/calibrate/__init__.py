"""Coefficients of the performance model from measurements: public points, and a user's own runs."""
