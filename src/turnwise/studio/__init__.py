"""The studio: start, stop, resume and fork runs from the viewer's page, label episodes, and talk to checkpoints."""
