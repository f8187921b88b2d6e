"""The Hugging Face Hub: models and datasets, from the cache first."""
