"""Metrics as pure functions over arrays, their confidence intervals, and simple baselines."""
