"""A conformance suite for any server that claims the contract of Scheduled Events.

It is a second, independent statement of the wire: it shares no code with the service, so a mistake of the one is
not a mistake of the other. Each rule is a named check, run from outside.
"""
