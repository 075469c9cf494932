"""Builds the Debian package: `make deb`. What goes into it is in `contents.py`, how it is put together in `build.py`."""
