"""What is to be done about an event, and when: the config, its rules, and the plan that follows from them."""
