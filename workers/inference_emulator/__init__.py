"""An emulated inference scheduler: it serves a synthetic load, and lends and reclaims servers by the real
API."""
