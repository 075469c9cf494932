"""DCGM, NVIDIA's health engine (nv-hostengine), read through the Python bindings that are installed with it."""
