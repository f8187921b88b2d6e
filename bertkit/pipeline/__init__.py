"""The training pipeline: settings, preparation, training session, run directory."""
