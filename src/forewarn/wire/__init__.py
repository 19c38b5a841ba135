"""How it is said: pure functions between the core and bytes. Names of the wire live only here."""
