"""Recording of calls made by SDK clients and HTTP clients: one file per kind of client, and the recorder they share."""
