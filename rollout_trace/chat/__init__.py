"""Any protocol's messages in the shape of OpenAI's chat messages."""
