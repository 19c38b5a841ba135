"""What is true whatever the store, the wire or the fabric: values and pure functions."""
