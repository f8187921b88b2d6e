"""The commands before and after training; `configs` declares their settings."""
