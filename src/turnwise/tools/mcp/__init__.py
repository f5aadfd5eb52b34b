"""Client for servers of the Model Context Protocol, whose tools become tools of the agent."""
