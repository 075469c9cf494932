"""A marker file for programs that exclude this node while the file exists, such as a load balancer."""
