"""Kubernetes: a taint, a label and a condition of ours on this node, and nobody else's."""
