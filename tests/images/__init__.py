"""The images, built and run without a container engine: a separate lane."""
