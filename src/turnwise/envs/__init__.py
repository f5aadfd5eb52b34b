"""One small folder per environment, and what they share."""
