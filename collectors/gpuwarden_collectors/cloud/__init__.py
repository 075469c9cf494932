"""Sources that announce the termination of this machine, and how each is queried. Facts only: policy decides."""
