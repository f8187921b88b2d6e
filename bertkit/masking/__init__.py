"""Masking and sampling for pre-training."""
