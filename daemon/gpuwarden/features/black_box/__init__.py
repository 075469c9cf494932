"""The black box: a trace on disk of the node's last readings and events, and a copy of it for each new failure."""
