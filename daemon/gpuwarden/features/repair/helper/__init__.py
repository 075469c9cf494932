"""The helper of root's: it carries out one step of a repair that the daemon asks for, and can do nothing else.

systemd starts it for each connection to `gpuwarden-repair.sock`. `service.py` has the protocol, `table.py` the steps, and `notebook.py` what
is known of them if it is killed.
"""
