"""Whether gpuwarden can do its work on this host: reads only, changes nothing."""
