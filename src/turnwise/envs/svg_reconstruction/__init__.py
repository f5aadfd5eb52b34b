"""See a picture and write SVG that draws it."""
