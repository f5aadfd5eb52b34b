"""Text for users and models: suggestions, commands, truncation, invalid characters."""
