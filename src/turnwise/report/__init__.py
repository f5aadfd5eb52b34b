"""Reports of runs and evaluations: progress, tables and plots in the terminal, charts, pictures, the HTML report."""
