"""Data of named entity recognition: sentences of words with entity tags."""
