"""Readers, known data sets, splits and tokenized sequences: from what a user names to features."""
