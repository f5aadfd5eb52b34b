"""States as pictures: SVG for pages, PNG and GIF for papers."""
