"""Tests of the package: `python3 -m unittest discover -s agent/sdk/python -t agent/sdk/python`."""
