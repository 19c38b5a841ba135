"""The wire format: pure functions between the core and bytes. Service and agent share them."""
