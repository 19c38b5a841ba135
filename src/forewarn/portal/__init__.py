"""The portal: web pages that use the control API, and nothing else."""
