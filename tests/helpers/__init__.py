"""What tests of several rooms share: runs, ledgers, requests, and scripts that are started as processes of their own."""

from pathlib import Path

HELPERS = Path(__file__).parent
ROOT = HELPERS.parents[1]
"""The project's folder."""
