"""Masked language modeling: choose and replace tokens, in numpy."""
