"""Playing scenarios: each run takes its steps over an engine, and watches what its VMs are told."""
