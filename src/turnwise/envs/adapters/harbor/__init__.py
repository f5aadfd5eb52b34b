"""Harbor task folders: instruction.md, task.toml, environment/, solution/ and tests/, in the sandbox."""
