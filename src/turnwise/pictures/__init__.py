"""Images that models read, and pictures of environment states as SVG and as pixels."""
