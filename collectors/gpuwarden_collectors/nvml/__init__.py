"""Reading GPUs through NVML. Importing this package loads no vendor library: only `NvmlReader.connect` does."""
