"""Kubernetes: gpuwarden's taint, label and condition on this node, and no other party's."""
