"""Faults of every kind, struck at random: `python -m faults` from this folder's parent."""
