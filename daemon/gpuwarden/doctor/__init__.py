"""Whether gpuwarden can do its work on this host: looks only, changes nothing."""
