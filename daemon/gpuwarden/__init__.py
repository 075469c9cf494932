"""The judging and acting half of gpuwarden."""
