"""What games of two players share: the protocol, a side's view, and play against a script."""
