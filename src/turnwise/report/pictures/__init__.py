"""Pictures of environment states: SVG for pages, PNG and GIF for files."""
