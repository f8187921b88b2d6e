"""Readers of data files: bytes, then text, then rows, with one parser per format."""
