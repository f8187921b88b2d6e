"""Batches, advice, Trainer arguments, checkpoints: training by Hugging Face's Trainer, our rules in it."""
