"""A run or an evaluation as one HTML file."""
