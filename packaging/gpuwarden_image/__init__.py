"""Builds the container image, without a registry and without a container engine: `make image`."""
