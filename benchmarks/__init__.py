"""Our speed and that of what one would use instead, measured in turn."""
