"""Walk over the ice to the goal."""
