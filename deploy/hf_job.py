# /// script
# requires-python = ">=3.10"
# dependencies = ["bertkit"]
# ///
"""A command of bertkit as a job: hf jobs uv run --flavor a10g-small deploy/hf_job.py COMMAND [FLAGS]."""

from bertkit.cli.app import main

if __name__ == "__main__":
    main()
