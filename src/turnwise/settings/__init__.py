"""Base classes of settings: sections, choices of one of several alternatives, and needs of sections from each other."""
