"""dstack's agent of this host, the shim, is stopped while the node is held out and no job is on it: `docs/dstack.md`."""
