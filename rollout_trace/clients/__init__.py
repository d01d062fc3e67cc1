"""Recording inside the clients of the SDKs: one file per SDK, and the seam they share."""
