"""Builds what runs on every distribution, with a Python of its own: `make bundle`. The steps are in `build.py`."""
