"""Who announces the end of this machine, and how each of them is asked. Facts only: what follows from them is policy's."""
