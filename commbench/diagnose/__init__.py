"""What can run on this machine and why not: one function a check, each file's CHECKS names them."""
