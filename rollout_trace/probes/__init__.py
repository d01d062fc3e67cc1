"""What an endpoint really serves."""
