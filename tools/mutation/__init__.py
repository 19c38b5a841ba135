"""Mutation testing: shows which small changes of the source no test notices. Run it with script/mutate."""
