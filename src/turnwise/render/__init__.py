"""Messages <-> token ids. The only package that uses chat templates."""
