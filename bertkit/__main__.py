"""Entry point of `python -m bertkit`."""

from bertkit.cli.app import main

main()
