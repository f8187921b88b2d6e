"""Scores, intervals, tests and calibration, as functions of arrays."""
