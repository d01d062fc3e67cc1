"""Messages of every protocol in the shape of OpenAI's chat messages."""
