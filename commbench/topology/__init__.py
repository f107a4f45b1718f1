"""What a cluster is made of: nodes, devices, links, switches; read from what it says of itself."""
