"""A marker file for programs that take this node out while the file exists, such as a load balancer."""
