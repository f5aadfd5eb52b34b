"""Complete a Sudoku grid."""
