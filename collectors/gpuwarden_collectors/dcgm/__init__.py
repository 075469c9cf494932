"""DCGM, NVIDIA's own health engine (nv-hostengine), asked through the bindings that are installed with it."""
