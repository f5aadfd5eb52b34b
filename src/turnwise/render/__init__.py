"""Messages <-> token ids: the only room that touches a chat template."""
