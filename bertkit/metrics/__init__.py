"""Scorers as pure functions over arrays, their intervals, and the baselines that stand beside them."""
