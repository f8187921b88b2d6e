"""Models and heads: loading, attention and dropout implementations, forward passes and losses."""
