"""The black box: the last readings and events of this node as a trace on disk, always, and a copy of it for each new failure."""
