"""What happens to jobs on a termination notice: scan, signal, acknowledgement, requeue, final node state."""
