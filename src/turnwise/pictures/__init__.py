"""Pictures of environment states: grids of named cells as SVG for pages and as pixels for files and models."""
