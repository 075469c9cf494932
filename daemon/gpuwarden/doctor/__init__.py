"""The checks of `gpuwarden doctor`: can gpuwarden do its work on this host? They only read and change nothing."""
