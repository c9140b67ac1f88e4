"""Tied weights: one draw for all time, so that pre-activations are Gaussian processes over time."""
