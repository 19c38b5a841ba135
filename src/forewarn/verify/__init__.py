"""Conformance suite for any server that implements Scheduled Events.

It states the wire protocol a second time and shares no code with the service, so that a mistake in one is not
repeated in the other. Each rule is a named check.
"""
