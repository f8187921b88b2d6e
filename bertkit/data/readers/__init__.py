"""Readers of data files, in three stages: bytes, text and rows. Each format of rows has its parser."""
