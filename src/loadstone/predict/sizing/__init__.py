"""Sizing: what a deployment's memory holds, by its engine's own rules."""
