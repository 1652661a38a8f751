"""Training with plans of its gradients beside training without, on emulated devices and links."""
