VERSION = "0.1.0"
"""The version of this client."""
