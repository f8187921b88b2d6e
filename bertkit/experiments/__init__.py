"""Experiments: a plan of runs and one table. Studies, suites and ablations are plans."""
