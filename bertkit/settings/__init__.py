"""Settings: how they are declared, validated, and read from recipes."""
