"""Encoders, heads and losses."""
