"""How it is written on the wire: pure functions between the core and bytes. Service and agent share them."""
