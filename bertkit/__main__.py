"""`python -m bertkit` is the same program as `bertkit`."""

from bertkit.cli.app import main

main()
