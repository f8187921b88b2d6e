"""Training with Hugging Face's Trainer: arguments, defaults, samplers, callbacks, checkpoints and scoring."""
