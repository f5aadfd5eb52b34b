"""Write a function that passes hidden tests."""
