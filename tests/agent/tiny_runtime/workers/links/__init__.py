"""Nothing: this runtime sends nothing over links."""
