"""Parse, call a recipe, print. No logic."""
