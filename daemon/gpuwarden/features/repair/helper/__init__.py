"""The helper that runs as root: it carries out one step of a repair for the daemon, and can do nothing else.

systemd starts it for each connection to `gpuwarden-repair.sock`. `service.py` has the protocol, `table.py` the steps,
and `notebook.py` the record of them that remains if the helper is killed.
"""
