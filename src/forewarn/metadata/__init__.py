"""The metadata plane: what VMs see."""
