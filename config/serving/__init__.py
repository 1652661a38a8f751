"""How the control plane's servers take requests, so that nobody who is slow or many keeps others waiting."""
