"""The web page over a folder of runs. Reads files only."""
