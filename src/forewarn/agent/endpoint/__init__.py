"""The endpoint from inside the VM: finding it, asking it, living through what it does to clients."""
